-- Version 5 of the schema: a restored or copied store is told from one that goes on.

-- The numbers of the database and of this table when the row was last vouched for: a restored table has another one.
ALTER TABLE solehold.clock ADD COLUMN database_oid bigint;
ALTER TABLE solehold.clock ADD COLUMN table_oid bigint;
-- The longest ttl that any server of this store allows. Nothing is decided for this long after a failover or a restore.
ALTER TABLE solehold.clock ADD COLUMN ttl_max_ms bigint NOT NULL DEFAULT 0;
-- What cursors are sealed with that holders show when they come back.
ALTER TABLE solehold.clock ADD COLUMN seal_key bytea;
-- Where the data went, if this store was retired: it decides nothing any more.
ALTER TABLE solehold.clock ADD COLUMN retired_to text;
-- Whether a failover can lose commits is configured; a row can be lost with the very commit that would have said so.
ALTER TABLE solehold.clock DROP COLUMN synchronous;
