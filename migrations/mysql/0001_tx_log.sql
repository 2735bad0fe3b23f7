-- One row per message id: what became of the business rows that were to commit with the message.
-- confirmed_at says since when nobody needs to be told any more: the broker acknowledged the commit, or it was rolled back.
-- Times are microseconds since the epoch, from the database's clock. VARBINARY compares byte for byte, trailing
-- spaces included, on MySQL and MariaDB alike.
CREATE TABLE IF NOT EXISTS tx_log (
    msg_id         VARBINARY(255) NOT NULL PRIMARY KEY,
    token          VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempts       INTEGER NOT NULL DEFAULT 1,
    state          VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                   CHECK (state IN ('PREPARING', 'COMMITTED', 'ROLLED_BACK')),
    kind           VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    producer_group VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    topic          VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    tag            VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    ordering_key   VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    payload        LONGBLOB NOT NULL,
    headers        MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    created_at     BIGINT NOT NULL,
    deadline_at    BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    confirmed_at   BIGINT,
    -- What may still need a look, and what the purger takes. It does not name the state: COMMITTED does not change it.
    INDEX tx_log_open (confirmed_at, deadline_at)
) ENGINE = InnoDB;

-- Which database this is: the scope travels with each half message, so that a check-back is answered only here.
CREATE TABLE IF NOT EXISTS tx_scope (
    id    INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    scope VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE = InnoDB;
INSERT INTO tx_scope (id, scope) VALUES (1, REPLACE(UUID(), '-', '')) ON DUPLICATE KEY UPDATE id = id;
