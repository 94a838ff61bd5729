-- Version 10 of the schema: a spent request counts for a key, and those that were cancelled before they were seen are
-- bounded by themselves. Requests of earlier versions count for no key, as if leases had spent them.

ALTER TABLE solehold.requests ADD COLUMN by_key text, ADD COLUMN cancelled boolean NOT NULL DEFAULT false;
CREATE INDEX requests_cancelled ON solehold.requests (tenant, kind, key, holder) WHERE cancelled;
