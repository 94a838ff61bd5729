-- What the gateway keeps. Everything that a node writes while it answers goes through `sessions.fence`: the largest token
-- under which anyone has written for that session. A node whose lock was lost bears a smaller one, and writes nothing.

CREATE SCHEMA IF NOT EXISTS gateway;

CREATE TABLE IF NOT EXISTS gateway.sessions (
    id       text COLLATE "C" PRIMARY KEY,
    received bigint NOT NULL DEFAULT 0, -- the position of the last message that came in
    fence    bigint NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS gateway.messages (
    session_id  text COLLATE "C" NOT NULL REFERENCES gateway.sessions,
    position    bigint NOT NULL,
    id          text NOT NULL,        -- the client's own name for it: sent again, it is the same message
    text        text NOT NULL,
    received_by text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reply       text,
    replied_by  text,
    PRIMARY KEY (session_id, position),
    UNIQUE (session_id, id)
);

CREATE INDEX IF NOT EXISTS messages_unanswered ON gateway.messages (received_at) WHERE reply IS NULL;

-- What was done, in the order of commits: the proof that no two nodes ever answered one session at the same time.
CREATE TABLE IF NOT EXISTS gateway.log (
    entry      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    position   bigint NOT NULL,
    token      bigint NOT NULL,
    node_id    text NOT NULL,
    step       text NOT NULL CHECK (step IN ('begun', 'answered')),
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS log_session ON gateway.log (session_id, entry);

-- Who had the lock of a session, from when to when. Written whatever the fence says, and so the proof that the lock itself let
-- no two nodes in: behind the fence the second of two would look like one that took over.
CREATE TABLE IF NOT EXISTS gateway.visits (
    entry      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    token      bigint NOT NULL,
    node_id    text NOT NULL,
    step       text NOT NULL CHECK (step IN ('entered', 'left', 'overdue')),
    at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS visits_session ON gateway.visits (session_id, entry);
