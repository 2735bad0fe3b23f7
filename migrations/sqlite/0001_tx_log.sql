-- One row per message id: what became of the business rows that were to commit with the message.
-- confirmed_at says since when nobody needs to be told any more: the broker acknowledged the commit, or it was rolled back.
-- Times are microseconds since the epoch, from the database's clock. Keys compare byte for byte.
CREATE TABLE IF NOT EXISTS tx_log (
    msg_id         TEXT NOT NULL PRIMARY KEY,
    token          TEXT NOT NULL,
    attempts       INTEGER NOT NULL DEFAULT 1,
    state          TEXT NOT NULL CHECK (state IN ('PREPARING', 'COMMITTED', 'ROLLED_BACK')),
    kind           TEXT NOT NULL,
    producer_group TEXT NOT NULL,
    topic          TEXT NOT NULL,
    tag            TEXT,
    ordering_key   TEXT,
    payload        BLOB NOT NULL,
    headers        TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    deadline_at    INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    confirmed_at   INTEGER
) WITHOUT ROWID;

-- What may still need a look, and what the purger takes. No index names the state, so that COMMITTED changes none.
CREATE INDEX IF NOT EXISTS tx_log_open ON tx_log (deadline_at) WHERE confirmed_at IS NULL;
CREATE INDEX IF NOT EXISTS tx_log_confirmed ON tx_log (confirmed_at) WHERE confirmed_at IS NOT NULL;

-- Which database this is: the scope travels with each half message, so that a check-back is answered only here.
CREATE TABLE IF NOT EXISTS tx_scope (
    id    INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    scope TEXT NOT NULL
);
INSERT OR IGNORE INTO tx_scope (id, scope) VALUES (1, lower(hex(randomblob(16))));
