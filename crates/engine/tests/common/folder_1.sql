-- The file of a data folder as version 1 of its schema made it.
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE log (seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, revision INTEGER NOT NULL, entry TEXT NOT NULL);
CREATE TABLE rows (tab TEXT NOT NULL, id TEXT NOT NULL, row TEXT NOT NULL, PRIMARY KEY (tab, id)) WITHOUT ROWID;
CREATE VIEW sessions AS SELECT row ->> '$.session.id' AS id, row ->> '$.session.holder.tenant' AS tenant,
    row ->> '$.session.holder.name' AS holder, row ->> '$.session.standing' AS standing,
    row ->> '$.session.ttl_ms' AS ttl_ms, row ->> '$.session.deadline' AS deadline_ms,
    row ->> '$.session.lease_count' AS leases, row FROM rows WHERE tab = 'session';
CREATE VIEW holders AS SELECT row ->> '$.holder.key.tenant' AS tenant, row ->> '$.holder.key.name' AS name,
    row ->> '$.holder.registered' AS registered, row ->> '$.holder.status' AS status,
    row ->> '$.holder.session' AS session_id, row FROM rows WHERE tab = 'holder';
CREATE VIEW resources AS SELECT row ->> '$.resource.key.tenant' AS tenant, row ->> '$.resource.key.kind' AS kind,
    row ->> '$.resource.key.key' AS key, row ->> '$.resource.lease.holder' AS holder,
    row ->> '$.resource.lease.id' AS lease_id, row ->> '$.resource.lease.token' AS token,
    row ->> '$.resource.last_token' AS last_token, row ->> '$.resource.state.document' AS state,
    row FROM rows WHERE tab = 'resource';
CREATE VIEW requests AS SELECT row ->> '$.request.request.resource.tenant' AS tenant,
    row ->> '$.request.request.resource.kind' AS kind, row ->> '$.request.request.resource.key' AS key,
    row ->> '$.request.request.holder' AS holder, row ->> '$.request.request.request' AS request,
    row ->> '$.request.until' AS until_ms FROM rows WHERE tab = 'request';
CREATE VIEW records AS SELECT row ->> '$.record.collection' AS collection, row ->> '$.record.id' AS id,
    row ->> '$.record.document' AS document FROM rows WHERE tab = 'record';
CREATE TABLE lease_events (
    revision INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, event_type TEXT NOT NULL,
    tenant TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
    lease_id TEXT, holder TEXT, session_id TEXT, token INTEGER, details TEXT NOT NULL);
CREATE TABLE event_index (hash INTEGER NOT NULL, revision INTEGER NOT NULL, PRIMARY KEY (hash, revision)) WITHOUT ROWID;
PRAGMA user_version = 1;
