-- Version 11 of the schema: shared holds (rule 29). A slot of a resource is a row of its own, with its number.

ALTER TABLE solehold.resources ADD COLUMN slot bigint NOT NULL DEFAULT 0;  -- 0: the resource itself
ALTER TABLE solehold.resources DROP CONSTRAINT resources_tenant_kind_key_key;
CREATE UNIQUE INDEX resources_key ON solehold.resources (tenant, kind, key, slot);

ALTER TABLE solehold.leases
    ADD COLUMN taken bigint NOT NULL DEFAULT 0,  -- how many of its slots are held or held back: mostly none
    ADD COLUMN slots bigint NOT NULL DEFAULT 0;  -- of a slot: of how many it is one, as its holder has agreed to

ALTER TABLE solehold.waiters ADD COLUMN slots bigint;  -- of how many slots it waits for one; none: for the resource
ALTER TABLE solehold.lease_events ADD COLUMN slot bigint NOT NULL DEFAULT 0;
