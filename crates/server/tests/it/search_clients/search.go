// The search commands of go-redis, in both protocol versions: go run search.go PORT. Prints "content" at the end.
package main

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func same(what string, seen, expected interface{}) {
	if !reflect.DeepEqual(seen, expected) {
		panic(fmt.Sprintf("%s: %#v, not %#v", what, seen, expected))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func refused(text string, err error) {
	if err == nil || !strings.Contains(err.Error(), text) {
		panic(fmt.Sprintf("not refused with %q: %v", text, err))
	}
}

func ids(found redis.FTSearchResult) []string {
	all := []string{}
	for _, doc := range found.Docs {
		all = append(all, doc.ID)
	}
	sort.Strings(all)
	return all
}

func searches(client *redis.Client) {
	schema := []*redis.FieldSchema{
		{FieldName: "city", FieldType: redis.SearchFieldTypeTag, Sortable: true},
		{FieldName: "price", FieldType: redis.SearchFieldTypeNumeric, Sortable: true},
		{FieldName: "name", FieldType: redis.SearchFieldTypeText, Weight: 1},
		{FieldName: "place", FieldType: redis.SearchFieldTypeGeo},
	}
	options := &redis.FTCreateOptions{OnHash: true, Prefix: []interface{}{"hotel:"}}
	must(client.FTCreate(ctx, "hotels", options, schema...).Err())
	refused("Index already exists", client.FTCreate(ctx, "hotels", options, schema...).Err())
	must(client.HSet(ctx, "hotel:0", "city", "Rome", "price", 120, "name", "Albergo Aurora", "place", "12.49,41.89").Err())
	must(client.HSet(ctx, "hotel:1", "city", "Rome", "price", 80, "name", "Bella Vista", "place", "12.51,41.90").Err())
	must(client.HSet(ctx, "hotel:2", "city", "Paris", "price", 200, "name", "Aurora", "place", "2.35,48.85").Err())

	found, err := client.FTSearch(ctx, "hotels", "@city:{rome}").Result()
	must(err)
	same("total", found.Total, 2)
	same("ids", ids(found), []string{"hotel:0", "hotel:1"})
	found, err = client.FTSearchWithArgs(ctx, "hotels", "@price:[$low inf]", &redis.FTSearchOptions{
		Return:         []redis.FTSearchReturn{{FieldName: "name", As: "called"}},
		SortBy:         []redis.FTSearchSortBy{{FieldName: "price", Desc: true}},
		WithSortKeys:   true,
		Params:         map[string]interface{}{"low": 100},
		DialectVersion: 2,
		Limit:          1,
	}).Result()
	must(err)
	same("total", found.Total, 2)
	same("first", found.Docs[0].ID, "hotel:2")
	same("fields", found.Docs[0].Fields, map[string]string{"called": "Aurora"})
	same("sort key", *found.Docs[0].SortKey, "#200")
	found, err = client.FTSearchWithArgs(ctx, "hotels", "aurora", &redis.FTSearchOptions{NoContent: true}).Result()
	must(err)
	same("without content", ids(found), []string{"hotel:0", "hotel:2"})
	found, err = client.FTSearchWithArgs(ctx, "hotels", "*", &redis.FTSearchOptions{CountOnly: true}).Result()
	must(err)
	same("count", found.Total, 3)
	found, err = client.FTSearchWithArgs(ctx, "hotels", "*", &redis.FTSearchOptions{
		Filters:   []redis.FTSearchFilter{{FieldName: "price", Min: 100, Max: 150}},
		GeoFilter: []redis.FTSearchGeoFilter{{FieldName: "place", Longitude: 12.5, Latitude: 41.9, Radius: 5, Unit: "km"}},
	}).Result()
	must(err)
	same("filtered", ids(found), []string{"hotel:0"})
	refused("Syntax error", client.FTSearch(ctx, "hotels", "@price:[1").Err())

	rows, err := client.FTAggregateWithArgs(ctx, "hotels", "*", &redis.FTAggregateOptions{
		Load:  []redis.FTAggregateLoad{{Field: "@price"}},
		Apply: []redis.FTAggregateApply{{Field: "@price * 2", As: "twice"}},
		GroupBy: []redis.FTAggregateGroupBy{{Fields: []interface{}{"@city"}, Reduce: []redis.FTAggregateReducer{
			{Reducer: redis.SearchCount, As: "n"},
			{Reducer: redis.SearchAvg, Args: []interface{}{"@twice"}, As: "mean"},
		}}},
		SortBy: []redis.FTAggregateSortBy{{FieldName: "@n", Desc: true}},
		Limit:  1,
	}).Result()
	must(err)
	same("rows", rows.Rows[0].Fields, map[string]interface{}{"city": "Rome", "n": "2", "mean": "200"})

	info, err := client.FTInfo(ctx, "hotels").Result()
	must(err)
	same("info", []interface{}{info.IndexName, info.NumDocs, info.PercentIndexed}, []interface{}{"hotels", 3, 1.0})
	same("prefixes", info.IndexDefinition.Prefixes, []string{"hotel:"})
	same("attributes", []interface{}{len(info.Attributes), info.Attributes[0].Attribute, info.Attributes[0].Sortable}, []interface{}{4, "city", true})
	plan, err := client.FTExplain(ctx, "hotels", "@city:{rome}").Result()
	must(err)
	same("explained", strings.HasPrefix(plan, "TAG:@city {"), true)
	values, err := client.FTTagVals(ctx, "hotels", "city").Result()
	must(err)
	sort.Strings(values)
	same("tags", values, []string{"paris", "rome"})
	all, err := client.FT_List(ctx).Result()
	must(err)
	same("list", all, []string{"hotels"})
	must(client.FTAliasAdd(ctx, "hotels", "inns").Err())
	must(client.FTSearch(ctx, "inns", "*").Err())
	must(client.FTAliasUpdate(ctx, "hotels", "inns").Err())
	must(client.FTAliasDel(ctx, "inns").Err())
	must(client.FTAlter(ctx, "hotels", false, []interface{}{"stars", "NUMERIC"}).Err())
	must(client.FTConfigGet(ctx, "TIMEOUT").Err())

	// Keys of an object mapper need not begin with a table's name.
	must(client.JSONSet(ctx, "doc", "$", `{"name":"Il Sole","stock":{"rome":5}}`).Err())
	value, err := client.JSONGet(ctx, "doc", "$.stock.rome").Result()
	must(err)
	same("document", value, "[5]")
	must(client.JSONDel(ctx, "doc", "$").Err())

	must(client.FTDropIndexWithArgs(ctx, "hotels", &redis.FTDropIndexOptions{DeleteDocs: true}).Err())
	same("dropped", client.Exists(ctx, "hotel:0", "hotel:1", "hotel:2").Val(), int64(0))
}

func main() {
	for _, protocol := range []int{2, 3} {
		// go-redis calls its format for version 3 unstable, and returns it only if an option requests it.
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1], Protocol: protocol})
		if protocol == 2 {
			searches(client)
			continue
		}
		options := &redis.FTCreateOptions{OnHash: true, Prefix: []interface{}{"bar:"}}
		must(client.FTCreate(ctx, "bars", options, &redis.FieldSchema{FieldName: "n", FieldType: redis.SearchFieldTypeNumeric}).Err())
		must(client.HSet(ctx, "bar:1", "n", 1).Err())
		same("list", client.FT_List(ctx).Val(), []string{"bars"})
		must(client.FTAggregate(ctx, "bars", "*").Err())
		must(client.FTDropIndexWithArgs(ctx, "bars", &redis.FTDropIndexOptions{DeleteDocs: true}).Err())
	}
	fmt.Println("content")
}
