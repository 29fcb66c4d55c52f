//! Commands on spaces: FT.*, and larder's extensions.

use super::super::Id;
use super::super::spec::{Group, KeyPlace, Keys, Spec, Subject};
use super::{CONSTANT, row};

const SEARCH: &str = "O(N) for the N candidates that the cheapest index yields";
const WALK: &str = "O(1); existing objects are indexed later, in steps";

#[allow(clippy::too_many_arguments)] // a row has as many columns
const fn space(
    id: Id,
    name: &'static str,
    arity: i32,
    flags: &'static str,
    place: KeyPlace,
    syntax: &'static str,
    summary: &'static str,
    complexity: &'static str,
) -> Spec {
    row(
        id,
        name,
        arity,
        flags,
        Group::Spaces,
        Subject::Tables,
        Keys::None,
        place,
        syntax,
        summary,
        complexity,
        "0.1.0",
        &[],
    )
}

#[rustfmt::skip]
pub const ROWS: &[Spec] = &[
    space(Id::FtAggregate, "FT.AGGREGATE", -3, "readonly", KeyPlace::AllCores,
        "index query [LOAD ...] [GROUPBY ... REDUCE ...] [SORTBY ...] [APPLY ...] [FILTER ...] [LIMIT offset count] [WITHCURSOR ...]",
        "Searches objects and computes rows from them: expressions, groups, sorting", SEARCH),
    space(Id::FtAliasAdd, "FT.ALIASADD", 3, "write", KeyPlace::AllCores,
        "alias index",
        "Adds an alias to a space", CONSTANT),
    space(Id::FtAliasDel, "FT.ALIASDEL", 2, "write", KeyPlace::AllCores,
        "alias",
        "Removes an alias of a space", CONSTANT),
    space(Id::FtAliasList, "FT.ALIASLIST", 2, "readonly", KeyPlace::Connection,
        "index",
        "Returns the aliases of a space", CONSTANT),
    space(Id::FtAliasUpdate, "FT.ALIASUPDATE", 3, "write", KeyPlace::AllCores,
        "alias index",
        "As FT.ALIASADD, but reassigns an alias of another space", CONSTANT),
    space(Id::FtAlter, "FT.ALTER", -4, "write", KeyPlace::AllCores,
        "index [SKIPINITIALSCAN] SCHEMA ADD attribute type [options ...] ... | index SCHEMA DROP attribute ... | index SUBSPACES count list ... [REGIONS count] | index SUBSPACES SWITCH | index SUBSPACES CANCEL | index INDEX count list ... | index INDEX DEFAULT",
        "Adds or drops attributes of a space, or replaces its subspaces or its local indexes; searches use new subspaces (see guide/spaces-plan.md) and indexes once they are complete", WALK),
    space(Id::FtChange, "FT.CHANGE", -5, "write denyoom", KeyPlace::AllCores,
        "index query [PARAMS count name value ...] [ONCE target id] DO DELETE | DO change target [argument ...] [change target [argument ...] ...]",
        "Changes or deletes all objects that match a query, each as by OBJ.CHANGE; returns the number of changed objects (see guide/objects.md)", "O(N) for N matching objects"),
    space(Id::FtConfig, "FT.CONFIG", -3, "readonly", KeyPlace::Connection,
        "GET option | SET option value",
        "Returns limits under RediSearch's names, * for all; they are fixed or set in the configuration, and SET accepts only the current value", CONSTANT),
    space(Id::FtCreate, "FT.CREATE", -4, "write", KeyPlace::AllCores,
        "index [ON HASH | JSON] [PREFIX count prefix ...] [FILTER expression] [SUBSPACES count list ...] [REGIONS count] [INDEX count list ...] SCHEMA attribute [AS name] type [options ...] ...",
        "Declares a space: objects that can be searched by their attributes. Existing objects are indexed in the background", WALK),
    space(Id::FtCursor, "FT.CURSOR", -4, "readonly", KeyPlace::AllCores,
        "READ index cursor [COUNT n] | DEL index cursor",
        "Returns the next rows of an aggregation WITHCURSOR, or deletes its cursor", SEARCH),
    space(Id::FtDropIndex, "FT.DROPINDEX", -2, "write", KeyPlace::AllCores,
        "index [DD]",
        "Drops a space; with DD also its objects", "O(N) for N objects in the space"),
    space(Id::FtExplain, "FT.EXPLAIN", -3, "readonly", KeyPlace::AllCores,
        "index query [options ...]",
        "Returns a query's syntax tree, and the plan of a search: regions, cores, indexes, and the estimated number of objects to examine", CONSTANT),
    space(Id::FtExplainCli, "FT.EXPLAINCLI", -3, "readonly", KeyPlace::AllCores,
        "index query [options ...]",
        "As FT.EXPLAIN, as lines of text", CONSTANT),
    space(Id::FtInfo, "FT.INFO", -2, "readonly", KeyPlace::AllCores,
        "index [REGIONS [query]]",
        "Returns the definition, objects, memory and indexing errors of a space; with REGIONS the size of each region, and the regions that a query would contact", CONSTANT),
    space(Id::FtProfile, "FT.PROFILE", -5, "readonly", KeyPlace::AllCores,
        "index SEARCH | AGGREGATE [LIMITED] QUERY query [options ...]",
        "Executes a search and reports its cost: the subspace and its regions, the cores, the chosen indexes, and the number of examined objects", SEARCH),
    space(Id::FtSearch, "FT.SEARCH", -3, "readonly", KeyPlace::AllCores,
        "index query [NOCONTENT] [RETURN count field ...] [SORTBY attribute [ASC | DESC]] [LIMIT offset count] [PARAMS count name value ...]",
        "Returns the objects that match a query, and their total number", SEARCH),
    space(Id::FtTagVals, "FT.TAGVALS", 3, "readonly", KeyPlace::AllCores,
        "index attribute",
        "Returns all values of a tag attribute", "O(N) for N objects"),
    space(Id::FtList, "FT._LIST", 1, "readonly", KeyPlace::Connection,
        "",
        "Returns the names of all spaces", CONSTANT),
    space(Id::SpaceRecord, "SPACE.RECORD", -3, "readonly", KeyPlace::AllCores,
        "START index [SECONDS seconds] | STOP index | GET index",
        "Records the workload of a space for `larder space plan`: START begins the recording, by default for an hour, GET returns what has been recorded so far, STOP ends it",
        "O(N) for N objects in the space (START), else O(1)"),
];
