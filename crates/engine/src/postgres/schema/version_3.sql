-- Version 3 of the schema: a grant and its end change no index, so that PostgreSQL keeps them in one page (heap-only updates).
--
-- What `leases` has of the last lease beside its id stays when that lease ends: only `lease_id` tells whether there is one.
-- The same holder or session that comes again then changes no index, and the sweeper's bound is cleared when it comes by.

-- The ids of a resource's leases begin with its mark, which finds the resource of a lease.
ALTER TABLE solehold.resources ADD COLUMN mark int;
CREATE INDEX resources_mark ON solehold.resources (mark);

-- Leases whose ids do not: those of before version 3, and those that were imported from there.
CREATE TABLE solehold.old_ids (
    lease_id    uuid PRIMARY KEY,
    resource_id bigint NOT NULL
);
INSERT INTO solehold.old_ids SELECT lease_id, resource_id FROM solehold.leases WHERE lease_id IS NOT NULL
    UNION SELECT pending_lease_id, resource_id FROM solehold.leases WHERE pending_lease_id IS NOT NULL;
DROP INDEX solehold.leases_id, solehold.leases_pending_id;
