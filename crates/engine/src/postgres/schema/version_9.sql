-- Version 9 of the schema: replicas share one budget for the wall clock's errors (rule 2).

-- Store time above which no replica gives any, when it was written down; it rises with time. A replica claims a ceiling under
-- the next number; under one number the highest counts. Rows are inserted and never updated.
CREATE TABLE solehold.ceilings (
    number     bigint NOT NULL,
    ceiling_ms bigint NOT NULL,
    claimed_ms bigint NOT NULL,  -- the ceiling that was claimed, in each row of the number
    PRIMARY KEY (number, ceiling_ms)
);
-- Where nothing is held yet, nothing can end early.
INSERT INTO solehold.ceilings
SELECT 0, m.at_ms + m.room_ms, m.at_ms + m.room_ms
FROM (SELECT (SELECT max(at_ms) FROM solehold.commits) AS at_ms,
             CASE WHEN EXISTS (SELECT 1 FROM solehold.resources) OR EXISTS (SELECT 1 FROM solehold.sessions)
                  THEN 0 ELSE 500 END AS room_ms) m;
