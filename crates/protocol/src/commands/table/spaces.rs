//! Commands on spaces: FT.*, and larder's own.

use super::super::Id;
use super::super::spec::{Group, Keys, Place, Spec, Subject};
use super::{CONSTANT, row};

const SEARCH: &str = "O(N) for N objects that the cheapest index leaves to look at";
const WALK: &str = "O(1); objects that are there are looked at in steps, later";

#[allow(clippy::too_many_arguments)] // a row has as many columns
const fn space(
    id: Id,
    name: &'static str,
    arity: i32,
    flags: &'static str,
    place: Place,
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
    space(Id::FtAggregate, "FT.AGGREGATE", -3, "readonly", Place::AllCores,
        "index query [LOAD ...] [GROUPBY ... REDUCE ...] [SORTBY ...] [APPLY ...] [FILTER ...] [LIMIT offset count] [WITHCURSOR ...]",
        "Finds objects, and makes rows of them: computed, grouped, sorted", SEARCH),
    space(Id::FtAliasAdd, "FT.ALIASADD", 3, "write", Place::AllCores,
        "alias index",
        "Gives a space another name", CONSTANT),
    space(Id::FtAliasDel, "FT.ALIASDEL", 2, "write", Place::AllCores,
        "alias",
        "Takes another name of a space away", CONSTANT),
    space(Id::FtAliasList, "FT.ALIASLIST", 2, "readonly", Place::Connection,
        "index",
        "The other names of a space", CONSTANT),
    space(Id::FtAliasUpdate, "FT.ALIASUPDATE", 3, "write", Place::AllCores,
        "alias index",
        "As FT.ALIASADD, also of a name that another space has", CONSTANT),
    space(Id::FtAlter, "FT.ALTER", -4, "write", Place::AllCores,
        "index [SKIPINITIALSCAN] SCHEMA ADD attribute type [options ...] ... | index SCHEMA DROP attribute ... | index SUBSPACES count list ... [REGIONS count] | index SUBSPACES SWITCH | index SUBSPACES CANCEL | index INDEX count list ... | index INDEX DEFAULT",
        "Adds attributes to a space, or drops them; or gives it other subspaces: they are filled, and then searched (see guide/spaces-plan.md); or other local indexes: they are built, and then used", WALK),
    space(Id::FtChange, "FT.CHANGE", -5, "write denyoom", Place::AllCores,
        "index query [PARAMS count name value ...] [ONCE target id] DO DELETE | DO change target [argument ...] [change target [argument ...] ...]",
        "Changes or deletes all objects that a query describes, each as OBJ.CHANGE does; answers how many (see guide/objects.md)", "O(N) for N objects that it finds"),
    space(Id::FtConfig, "FT.CONFIG", -3, "readonly", Place::Connection,
        "GET option | SET option value",
        "Limits by RediSearch's names, * for all; they are of the configuration, and SET takes no other value than there is", CONSTANT),
    space(Id::FtCreate, "FT.CREATE", -4, "write", Place::AllCores,
        "index [ON HASH | JSON] [PREFIX count prefix ...] [FILTER expression] [SUBSPACES count list ...] [REGIONS count] [INDEX count list ...] SCHEMA attribute [AS name] type [options ...] ...",
        "Declares a space: objects that can be searched by their attributes. Those that are there are found after a while", WALK),
    space(Id::FtCursor, "FT.CURSOR", -4, "readonly", Place::AllCores,
        "READ index cursor [COUNT n] | DEL index cursor",
        "The next rows of an aggregation WITHCURSOR, or its end", SEARCH),
    space(Id::FtDropIndex, "FT.DROPINDEX", -2, "write", Place::AllCores,
        "index [DD]",
        "Drops a space; with DD its objects, too", "O(N) for N objects that it has"),
    space(Id::FtExplain, "FT.EXPLAIN", -3, "readonly", Place::AllCores,
        "index query [options ...]",
        "What a query means, as a tree; and which regions, cores and indexes a search would use, and how many objects it would look at", CONSTANT),
    space(Id::FtExplainCli, "FT.EXPLAINCLI", -3, "readonly", Place::AllCores,
        "index query [options ...]",
        "As FT.EXPLAIN, in lines", CONSTANT),
    space(Id::FtInfo, "FT.INFO", -2, "readonly", Place::AllCores,
        "index [REGIONS [query]]",
        "Definition, objects, memory and faults of a space; with REGIONS how full each region is, and which of them a query would ask", CONSTANT),
    space(Id::FtProfile, "FT.PROFILE", -5, "readonly", Place::AllCores,
        "index SEARCH | AGGREGATE [LIMITED] QUERY query [options ...]",
        "Searches, and tells what that took: the subspace and its regions, the cores, the indexes that were chosen, and the objects looked at", SEARCH),
    space(Id::FtSearch, "FT.SEARCH", -3, "readonly", Place::AllCores,
        "index query [NOCONTENT] [RETURN count field ...] [SORTBY attribute [ASC | DESC]] [LIMIT offset count] [PARAMS count name value ...]",
        "The objects that a query describes, and how many there are", SEARCH),
    space(Id::FtTagVals, "FT.TAGVALS", 3, "readonly", Place::AllCores,
        "index attribute",
        "All values that a tag has", "O(N) for N objects"),
    space(Id::FtList, "FT._LIST", 1, "readonly", Place::Connection,
        "",
        "The names of all spaces", CONSTANT),
    space(Id::SpaceRecord, "SPACE.RECORD", -3, "readonly", Place::AllCores,
        "START index [SECONDS seconds] | STOP index | GET index",
        "What is done with a space, as the workload that `larder space plan` takes: START begins to record it, for an hour if no seconds are given, GET answers what was recorded so far, STOP ends it",
        "START O(N) for N objects that it has; else O(1)"),
];
