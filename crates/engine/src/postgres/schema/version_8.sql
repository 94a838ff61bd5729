-- Version 8 of the schema: events about a resource name the session of its present holder, which is told of them, too.

ALTER TABLE solehold.lease_events ADD COLUMN holder_session_id uuid;
