//! The effect of FLUSHALL on spaces.

use super::{add_hotels, call, check, create_hotels};
use crate::resp::Client;
use crate::support::TestServer;

#[test]
fn flushall_keeps_spaces_unless_configured_to_drop_them() {
    for (threads, drops) in [(1, false), (1, true), (2, false), (2, true)] {
        let server = TestServer::with(|config| {
            config.server.threads = threads;
            config.spaces.flush_drops_spaces = drops;
        });
        let mut client = Client::connect(&server);
        for command in ["FLUSHALL", "FLUSHDB SYNC"] {
            create_hotels(&mut client);
            check(&mut client, "FT.ALIASADD inns hotels", "+OK");
            add_hotels(&mut client);
            check(&mut client, "FLUSHALL NO", "-ERR syntax error");
            assert!(call(&mut client, &["FT._LIST"]).contains("hotels"));
            check(&mut client, command, "+OK");
            check(&mut client, "DBSIZE", ":0");
            let list = call(&mut client, &["FT._LIST"]);
            assert_eq!(list.contains("hotels"), !drops, "{list}");
            if !drops {
                check(&mut client, "FT.DROPINDEX hotels", "+OK");
            }
        }
        create_hotels(&mut client);
        check(&mut client, "MULTI", "+OK");
        check(&mut client, "FLUSHALL", "+QUEUED");
        let flushed = call(&mut client, &["EXEC"]);
        assert_eq!(
            flushed.starts_with("*1|-ERR FLUSHALL would drop"),
            drops,
            "{flushed}"
        );
    }
}
