-- One row per message id: what became of the business rows that were to commit with the message.
-- confirmed_at says since when nobody needs to be told any more: the broker acknowledged the commit, or it was rolled back.
-- Times are microseconds since the epoch, from the database's clock. Keys compare byte for byte.
CREATE TABLE IF NOT EXISTS tx_log (
    msg_id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    token          TEXT COLLATE "C" NOT NULL,
    attempts       INTEGER NOT NULL DEFAULT 1,
    state          TEXT COLLATE "C" NOT NULL CHECK (state IN ('PREPARING', 'COMMITTED', 'ROLLED_BACK')),
    kind           TEXT NOT NULL,
    producer_group TEXT NOT NULL,
    topic          TEXT NOT NULL,
    tag            TEXT,
    ordering_key   TEXT,
    payload        BYTEA NOT NULL,
    headers        TEXT NOT NULL,
    created_at     BIGINT NOT NULL,
    deadline_at    BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    confirmed_at   BIGINT
) WITH (fillfactor = 50);

-- What may still need a look, and what the purger takes. No index names the state, so that COMMITTED is a heap-only update,
-- for which half of each page is left.
CREATE INDEX IF NOT EXISTS tx_log_open ON tx_log (deadline_at) WHERE confirmed_at IS NULL;
CREATE INDEX IF NOT EXISTS tx_log_confirmed ON tx_log (confirmed_at) WHERE confirmed_at IS NOT NULL;

-- Which database this is: the scope travels with each half message, so that a check-back is answered only here.
CREATE TABLE IF NOT EXISTS tx_scope (
    id    INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    scope TEXT COLLATE "C" NOT NULL
);
INSERT INTO tx_scope (id, scope) VALUES (1, replace(gen_random_uuid()::text, '-', '')) ON CONFLICT (id) DO NOTHING;
