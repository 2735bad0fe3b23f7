//! Every statement on `tx_log`, its dialects side by side.
//!
//! Each UPDATE names the state and token that it expects; no row is an answer, never a silent success.

use super::{
    Claim, Tombstone,
    statement::{Dialect, Statement},
};

/// Whether the connection is to a primary that takes writes, as 1 or 0. Read by the statement that relies on it, so
/// that no fail-over can slip between.
const IS_PRIMARY: [(Dialect, &str); 3] = [
    (Dialect::Postgres, "(NOT pg_is_in_recovery())::int::bigint"),
    // As text, since newer MariaDB servers answer with words.
    (
        Dialect::MySql,
        "CASE WHEN CAST(@@global.read_only AS CHAR) IN ('0', 'OFF') \
         AND CAST(@@global.innodb_read_only AS CHAR) IN ('0', 'OFF') THEN 1 ELSE 0 END",
    ),
    (Dialect::Sqlite, "1"),
];

fn by(dialect: Dialect, texts: [(Dialect, &'static str); 3]) -> &'static str {
    let [postgres, mysql, sqlite] = texts.map(|(_, text)| text);
    match dialect {
        Dialect::Postgres => postgres,
        Dialect::MySql => mysql,
        Dialect::Sqlite => sqlite,
    }
}

/// Step 2: PREPARING for many attempts at once. Fails as a whole when one of the message ids has a row.
/// `at_once`, which only MariaDB understands (manual, SET STATEMENT): also where it would wait for somebody's lock.
pub(crate) fn claim(dialect: Dialect, claims: &[&Claim], at_once: bool) -> Statement {
    let before = if at_once { "SET STATEMENT innodb_lock_wait_timeout = 0 FOR " } else { "" };
    let mut statement = Statement::new(dialect, before).sql(
        "INSERT INTO tx_log (msg_id, token, attempts, state, kind, producer_group, topic, tag, ordering_key, payload, \
         headers, created_at, deadline_at, updated_at) VALUES ",
    );
    for (position, claim) in claims.iter().enumerate() {
        statement = statement.sql(if position == 0 { "(" } else { ", (" });
        statement = statement.bind(&*claim.msg_id).sql(", ").bind(&*claim.token).sql(", 1, 'PREPARING', ");
        statement = what_to_send(statement, claim, ["", ", ", ", ", ", ", ", ", ", ", ", "]).sql(", ");
        statement = statement.now().sql(", ").now().sql(" + ").bind(claim.deadline_micros()).sql(", ").now().sql(")");
    }
    asynchronously(dialect, statement)
}

/// Step 2, for message ids whose earlier attempts were rolled back: their rows as `(msg_id, token)`, but not locked ones.
pub(crate) fn replaceable<'a>(dialect: Dialect, rows: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Statement {
    let statement =
        Statement::new(dialect, "SELECT msg_id, kind FROM tx_log WHERE state = 'ROLLED_BACK' AND msg_id IN ");
    let statement = statement.bind_list(rows.clone().map(|(msg_id, _)| msg_id)).sql(" AND token IN ");
    locked(dialect, statement.bind_list(rows.map(|(_, token)| token)))
}

/// Replaces a row that [`replaceable`] has locked in the same transaction.
pub(crate) fn replace_claim(dialect: Dialect, claim: &Claim, rolled_back_token: &str) -> Statement {
    let statement = Statement::new(dialect, "UPDATE tx_log SET token = ").bind(&*claim.token);
    let statement = what_to_send(
        statement.sql(", attempts = attempts + 1, state = 'PREPARING', confirmed_at = NULL"),
        claim,
        [
            ", kind = ",
            ", producer_group = ",
            ", topic = ",
            ", tag = ",
            ", ordering_key = ",
            ", payload = ",
            ", headers = ",
        ],
    );
    let statement = statement.sql(", created_at = ").now().sql(", updated_at = ").now().sql(", deadline_at = ").now();
    let statement = statement.sql(" + ").bind(claim.deadline_micros()).sql(" WHERE msg_id = ").bind(&*claim.msg_id);
    let statement = statement.sql(" AND token = ").bind(rolled_back_token).sql(" AND state = 'ROLLED_BACK'");
    asynchronously(dialect, statement)
}

fn what_to_send(statement: Statement, claim: &Claim, before: [&str; 7]) -> Statement {
    let [kind, group, topic, tag, ordering_key, payload, headers] = before;
    let statement = statement.sql(kind).bind(&*claim.kind).sql(group).bind(&*claim.producer_group);
    let statement = statement.sql(topic).bind(&*claim.topic).sql(tag).bind(claim.tag.as_deref());
    let statement = statement.sql(ordering_key).bind(claim.ordering_key.as_deref());
    statement.sql(payload).bind(claim.payload.clone()).sql(headers).bind(&*claim.headers)
}

/// For claims and confirmations, which a crash of the database may lose: PostgreSQL does not wait for its disk. The
/// setting ends with the transaction, so that no pooler can carry it to another one.
fn asynchronously(dialect: Dialect, statement: Statement) -> Statement {
    match dialect {
        Dialect::Postgres => statement.sql(" RETURNING set_config('synchronous_commit', 'off', true)"),
        Dialect::MySql | Dialect::Sqlite => statement,
    }
}

/// Step 4, first statement: the fence, and with its row lock the lease, of the local transaction.
pub(crate) fn commit(dialect: Dialect, msg_id: &str, token: &str) -> Statement {
    let statement = Statement::new(dialect, "UPDATE tx_log SET state = 'COMMITTED', updated_at = ").now();
    let statement = statement.sql(" WHERE msg_id = ").bind(msg_id);
    // The crash rig shows that it sees what goes wrong without the fence.
    if cfg!(rocketmq_tx_without_fence) {
        return durably(dialect, statement);
    }
    durably(dialect, statement.sql(" AND token = ").bind(token).sql(" AND state = 'PREPARING'"))
}

/// For what must survive a crash once it was answered, whatever the role's default is: what is final.
fn durably(dialect: Dialect, statement: Statement) -> Statement {
    match dialect {
        Dialect::Postgres => statement.sql(
            " RETURNING CASE current_setting('synchronous_commit') WHEN 'off' \
             THEN set_config('synchronous_commit', 'on', true) END",
        ),
        Dialect::MySql | Dialect::Sqlite => statement,
    }
}

/// Step 4, last statement before COMMIT: the state, and whether this is still the transaction that wrote it.
pub(crate) fn last_read(dialect: Dialect, msg_id: &str, token: &str) -> Statement {
    let same_transaction = by(
        dialect,
        [
            (Dialect::Postgres, "(xmin = pg_current_xact_id()::xid)::int::bigint"),
            // The savepoint tells; see `release_savepoint`.
            (Dialect::MySql, "1"),
            (Dialect::Sqlite, "1"),
        ],
    );
    let statement = Statement::new(dialect, "SELECT state, ").sql(same_transaction);
    statement.sql(" FROM tx_log WHERE msg_id = ").bind(msg_id).sql(" AND token = ").bind(token)
}

/// Fails when the transaction that began with the savepoint has ended, where `last_read` cannot tell.
pub(crate) fn release_savepoint(dialect: Dialect) -> Option<&'static str> {
    match dialect {
        Dialect::Postgres => None,
        Dialect::MySql | Dialect::Sqlite => Some("RELEASE SAVEPOINT rocketmq_tx"),
    }
}

/// Step 6: the attempt can never commit any more. Waits for the row's lock.
pub(crate) fn roll_back(dialect: Dialect, msg_id: &str, token: &str) -> Statement {
    let statement = set_rolled_back(dialect).sql(" AND msg_id = ").bind(msg_id).sql(" AND token = ").bind(token);
    durably(dialect, statement)
}

/// A rollback needs no acknowledgement: whoever is asked later, or finds no row, says the same.
fn set_rolled_back(dialect: Dialect) -> Statement {
    let statement = Statement::new(dialect, "UPDATE tx_log SET state = 'ROLLED_BACK', updated_at = ").now();
    statement.sql(", confirmed_at = ").now().sql(" WHERE state = 'PREPARING'")
}

/// Check-backs, and what became of an attempt: the rows of many message ids, and whether a primary showed them.
pub(crate) fn read<'a>(dialect: Dialect, msg_ids: impl IntoIterator<Item = &'a str>) -> Statement {
    let statement = Statement::new(dialect, "SELECT msg_id, token, state, ").sql(by(dialect, IS_PRIMARY));
    statement.sql(", CASE WHEN confirmed_at IS NULL THEN 0 ELSE 1 END FROM tx_log WHERE msg_id IN ").bind_list(msg_ids)
}

/// The broker acknowledged the end of these committed messages. COMMITTED is final, so the message id suffices. COALESCE
/// keeps planners from the index of open rows, which a busy service has more of than a batch.
pub(crate) fn confirm<'a>(dialect: Dialect, msg_ids: impl IntoIterator<Item = &'a str>) -> Statement {
    let statement = Statement::new(dialect, "UPDATE tx_log SET confirmed_at = ").now();
    let statement = statement.sql(" WHERE state = 'COMMITTED' AND COALESCE(confirmed_at, 0) = 0 AND msg_id IN ");
    asynchronously(dialect, statement.bind_list(msg_ids))
}

/// The settler's candidates. A live local transaction holds its row's lock and is skipped.
pub(crate) fn expired(dialect: Dialect, limit: i64) -> Statement {
    let statement = Statement::new(dialect, "SELECT msg_id, kind FROM tx_log WHERE confirmed_at IS NULL");
    let statement = statement.sql(" AND state = 'PREPARING' AND deadline_at < ").now();
    locked(dialect, statement.sql(" ORDER BY deadline_at LIMIT ").bind(limit))
}

/// Rolls back the rows that [`expired`] has locked in the same transaction.
pub(crate) fn settle<'a>(dialect: Dialect, msg_ids: impl IntoIterator<Item = &'a str>) -> Statement {
    durably(dialect, set_rolled_back(dialect).sql(" AND msg_id IN ").bind_list(msg_ids))
}

/// A tombstone for a half whose claim never came: afterwards neither its claim nor its local transaction can succeed.
pub(crate) fn bury(dialect: Dialect, tombstone: &Tombstone) -> Statement {
    let statement = Statement::new(
        dialect,
        "INSERT INTO tx_log (msg_id, token, attempts, state, kind, producer_group, topic, payload, headers, \
         created_at, deadline_at, updated_at, confirmed_at) VALUES (",
    );
    let statement = statement.bind(&*tombstone.msg_id).sql(", ").bind(&*tombstone.token).sql(", 0, 'ROLLED_BACK', ");
    let statement = statement.bind(&*tombstone.kind).sql(", ").bind(&*tombstone.producer_group).sql(", ");
    let statement = statement.bind(&*tombstone.topic).sql(", ").bind(bytes::Bytes::new()).sql(", '[]', ");
    durably(dialect, statement.now().sql(", ").now().sql(", ").now().sql(", ").now().sql(")"))
}

/// The purger's candidates: acknowledged or rolled back for longer than the retention.
pub(crate) fn purgeable(dialect: Dialect, retention_micros: i64, limit: i64) -> Statement {
    let statement = Statement::new(dialect, "SELECT msg_id, kind FROM tx_log WHERE state <> 'PREPARING'");
    let statement = statement.sql(" AND confirmed_at < ").now().sql(" - ").bind(retention_micros);
    locked(dialect, statement.sql(" ORDER BY confirmed_at LIMIT ").bind(limit))
}

/// Deletes the rows that [`purgeable`] has locked in the same transaction.
pub(crate) fn purge<'a>(dialect: Dialect, msg_ids: impl IntoIterator<Item = &'a str>) -> Statement {
    Statement::new(dialect, "DELETE FROM tx_log WHERE state <> 'PREPARING' AND msg_id IN ").bind_list(msg_ids)
}

fn locked(dialect: Dialect, statement: Statement) -> Statement {
    match dialect {
        Dialect::Postgres | Dialect::MySql => statement.sql(" FOR UPDATE SKIP LOCKED"),
        // BEGIN IMMEDIATE has the only lock.
        Dialect::Sqlite => statement,
    }
}

/// The scope, and whether a primary showed it.
pub(crate) fn scope(dialect: Dialect) -> Statement {
    Statement::new(dialect, "SELECT scope, ").sql(by(dialect, IS_PRIMARY)).sql(" FROM tx_scope WHERE id = 1")
}

/// The server's version, as text, whether it is a primary, the largest packet that it takes from a client, and
/// its encoding.
pub(crate) fn server(dialect: Dialect) -> Statement {
    let version = by(
        dialect,
        [
            (Dialect::Postgres, "current_setting('server_version')"),
            (Dialect::MySql, "VERSION()"),
            (Dialect::Sqlite, "sqlite_version()"),
        ],
    );
    let max_packet = by(
        dialect,
        [
            (Dialect::Postgres, "NULL::bigint"),
            (Dialect::MySql, "CAST(@@max_allowed_packet AS SIGNED)"),
            (Dialect::Sqlite, "NULL"),
        ],
    );
    // The SDK's own connections to MySQL and MariaDB are utf8mb4, and its keys there are bytes.
    let encoding = by(
        dialect,
        [
            (Dialect::Postgres, "current_setting('server_encoding')"),
            (Dialect::MySql, "'UTF8'"),
            (Dialect::Sqlite, "'UTF8'"),
        ],
    );
    let statement = Statement::new(dialect, "SELECT ").sql(version).sql(", ").sql(by(dialect, IS_PRIMARY));
    statement.sql(", ").sql(max_packet).sql(", ").sql(encoding)
}

/// Statements that change nothing, for which the server asks for the same rights as for the SDK's own.
pub(crate) fn rights(dialect: Dialect) -> [Statement; 3] {
    [
        "INSERT INTO tx_log (msg_id, token, state, kind, producer_group, topic, payload, headers, created_at, deadline_at, \
         updated_at) SELECT msg_id, token, state, kind, producer_group, topic, payload, headers, created_at, deadline_at, \
         updated_at FROM tx_log WHERE 1 = 0",
        // By key, since `sql_safe_updates` refuses anything else.
        "UPDATE tx_log SET state = 'ROLLED_BACK' WHERE msg_id = ''",
        "DELETE FROM tx_log WHERE msg_id = ''",
    ]
    .map(|sql| Statement::new(dialect, sql))
}

/// The names of a table's columns where the connection finds it; no row when it finds no such table.
pub(crate) fn columns(dialect: Dialect, table: &str) -> Statement {
    match dialect {
        Dialect::Postgres => Statement::new(
            dialect,
            "SELECT attname::text FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped AND attrelid = to_regclass(",
        )
        .bind(table)
        .sql(")"),
        Dialect::MySql => Statement::new(
            dialect,
            "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ",
        )
        .bind(table),
        Dialect::Sqlite => Statement::new(dialect, "SELECT name FROM pragma_table_info(").bind(table).sql(")"),
    }
}
