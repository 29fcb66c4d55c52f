// The helpers client.ft and client.json of node-redis, in both protocol versions: node search.js PORT. Prints "content" at the end.

const assert = require('assert');
const { createClient, SCHEMA_FIELD_TYPE: T, FT_AGGREGATE_STEPS: S, FT_AGGREGATE_GROUP_BY_REDUCERS: R } = require('redis');

async function hashes(client) {
  await assert.rejects(client.ft.info('hotels'), /Unknown index name/);
  const schema = {
    city: { type: T.TAG, SORTABLE: true },
    price: { type: T.NUMERIC, SORTABLE: 'UNF' },
    name: { type: T.TEXT, WEIGHT: 1 },
    place: T.GEO,
  };
  assert.strictEqual(await client.ft.create('hotels', schema, { ON: 'HASH', PREFIX: 'hotel' }), 'OK');
  await assert.rejects(client.ft.create('hotels', schema), /Index already exists/);
  const hotels = [['Rome', 120, 'Albergo Aurora', '12.49,41.89'], ['Rome', 80, 'Bella Vista', '12.51,41.90'], ['Paris', 200, 'Aurora', '2.35,48.85']];
  for (const [number, [city, price, name, place]] of hotels.entries()) {
    assert.strictEqual(await client.hSet(`hotel${number}`, { city, price, name, place }), 4);
  }
  const found = await client.ft.search('hotels', '@city:{rome}', { SORTBY: { BY: 'price', DIRECTION: 'DESC' }, RETURN: ['name', 'price'] });
  assert.deepStrictEqual(JSON.parse(JSON.stringify(found)), {
    total: 2,
    documents: [
      { id: 'hotel0', value: { name: 'Albergo Aurora', price: '120' } },
      { id: 'hotel1', value: { name: 'Bella Vista', price: '80' } },
    ],
  });
  const params = { PARAMS: { low: '100', town: 'Paris' }, DIALECT: 2, LIMIT: { from: 0, size: 5 } };
  assert.strictEqual((await client.ft.search('hotels', '@price:[$low inf] @city:{$town}', params)).total, 1);
  assert.deepStrictEqual((await client.ft.searchNoContent('hotels', '@place:[12.5 41.9 5 km]')).documents.sort(), ['hotel0', 'hotel1']);
  await assert.rejects(client.ft.search('hotels', '@price:[1'), /Syntax error/);
  const rows = await client.ft.aggregate('hotels', '*', {
    LOAD: '@price',
    STEPS: [
      { type: S.APPLY, expression: '@price * 2', AS: 'twice' },
      { type: S.GROUPBY, properties: '@city', REDUCE: [{ type: R.COUNT, AS: 'n' }, { type: R.SUM, property: '@twice', AS: 'sum' }] },
      { type: S.FILTER, expression: '@n >= 1' },
      { type: S.SORTBY, BY: { BY: '@n', DIRECTION: 'DESC' }, MAX: 5 },
      { type: S.LIMIT, from: 0, size: 1 },
    ],
  });
  assert.deepStrictEqual(rows.results.map((row) => ({ ...row })), [{ city: 'Rome', n: '2', sum: '400' }]);
  const part = await client.ft.aggregateWithCursor('hotels', '*', { LOAD: '@__key', COUNT: 2 });
  assert.strictEqual(part.results.length, 2);
  const rest = await client.ft.cursorRead('hotels', part.cursor);
  assert.deepStrictEqual([rest.results.length, rest.cursor], [1, 0]);
  const open = await client.ft.aggregateWithCursor('hotels', '*', { COUNT: 1 });
  assert.strictEqual(await client.ft.cursorDel('hotels', open.cursor), 'OK');
  await assert.rejects(client.ft.cursorRead('hotels', open.cursor), /Cursor not found/);
  const info = await client.ft.info('hotels');
  assert.deepStrictEqual([info.index_name, info.num_docs, info.percent_indexed], ['hotels', 3, 1]);
  assert.deepStrictEqual(info.attributes.map((one) => one.attribute), ['city', 'price', 'name', 'place']);
  assert.match(await client.ft.explain('hotels', '@city:{rome}'), /^TAG:@city \{/);
  assert.ok((await client.ft.explainCli('hotels', '@price:[1 2]')).length > 0);
  assert.deepStrictEqual((await client.ft.tagVals('hotels', 'city')).sort(), ['paris', 'rome']);
  assert.deepStrictEqual(await client.ft._list(), ['hotels']);
  assert.strictEqual(await client.ft.alter('hotels', { stars: T.NUMERIC }), 'OK');
  assert.strictEqual(await client.ft.aliasAdd('inns', 'hotels'), 'OK');
  assert.strictEqual((await client.ft.search('inns', '*')).total, 3);
  assert.strictEqual(await client.ft.aliasUpdate('inns', 'hotels'), 'OK');
  assert.strictEqual(await client.ft.aliasDel('inns'), 'OK');
  assert.ok(await client.ft.configGet('TIMEOUT'));
  const profile = await client.ft.profileSearch('hotels', '@city:{rome}');
  assert.ok(profile.results && profile.profile);
  assert.strictEqual(await client.ft.dropIndex('hotels', { DD: true }), 'OK');
  assert.strictEqual(await client.exists(['hotel0', 'hotel1', 'hotel2']), 0);
}

async function documents(client) {
  const schema = {
    '$.name': { type: T.TEXT, AS: 'name' },
    '$.tags[*]': { type: T.TAG, AS: 'tags' },
    '$.stock.rome': { type: T.NUMERIC, AS: 'stock', SORTABLE: true },
  };
  assert.strictEqual(await client.ft.create('docs', schema, { ON: 'JSON', PREFIX: 'doc:' }), 'OK');
  assert.strictEqual(await client.json.set('doc:1', '$', { name: 'Il Sole', tags: ['new', 'red'], stock: { rome: 5 } }), 'OK');
  assert.strictEqual(await client.json.set('doc:2', '$', { name: 'La Luna', tags: ['old'], stock: { rome: 9 } }), 'OK');
  const found = await client.ft.search('docs', '@tags:{new}');
  assert.deepStrictEqual(found.documents.map((it) => ({ id: it.id, value: { ...it.value } })), [
    { id: 'doc:1', value: { name: 'Il Sole', tags: ['new', 'red'], stock: { rome: 5 } } },
  ]);
  assert.deepStrictEqual(await client.json.numIncrBy('doc:1', '$.stock.rome', 5), [10]);
  assert.deepStrictEqual(await client.json.get('doc:1', { path: '$.stock.rome' }), [10]);
  assert.deepStrictEqual(await client.json.arrAppend('doc:1', '$.tags', 'big'), [3]);
  assert.deepStrictEqual(await client.json.mGet(['doc:1', 'doc:2'], '$.name'), [['Il Sole'], ['La Luna']]);
  assert.strictEqual((await client.ft.search('docs', '@stock:[10 10] @tags:{big}')).total, 1);
  assert.strictEqual(await client.json.del('doc:1'), 1);
  assert.strictEqual(await client.ft.dropIndex('docs', { DD: true }), 'OK');
}

async function main() {
  for (const RESP of [2, 3]) {
    const client = createClient({ url: `redis://127.0.0.1:${process.argv[2]}`, RESP });
    client.on('error', () => {});
    await client.connect();
    // With version 3, node-redis returns search replies unparsed, and only if an option requests it.
    if (RESP === 2) {
      await hashes(client);
      await documents(client);
    } else {
      await client.json.set('doc:3', '$', { n: 1 });
      assert.deepStrictEqual(await client.json.numIncrBy('doc:3', '$.n', 1), [2]);
      assert.deepStrictEqual(await client.json.type('doc:3', { path: '$.n' }), ['integer']);
      assert.strictEqual(await client.json.del('doc:3'), 1);
    }
    client.destroy();
  }
  console.log('content');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
