-- Version 6 of the schema: replicas take turns at sweeping and forgetting.

-- The row with the highest number says whose turn it is and until when. Rows are inserted and never updated; the keeper
-- removes those of turns that are over.
CREATE TABLE solehold.turns (
    number   bigint PRIMARY KEY,
    keeper   uuid NOT NULL,    -- an opened store of one replica
    until_ms bigint NOT NULL
);
