-- name: settings
-- Of the transaction only. A role or database may have weakened what "durable" needs.
SELECT set_config('search_path', %(path)s, true), set_config('statement_timeout', %(timeout)s, true),
    set_config('synchronous_commit', 'on', true);

-- name: newest
SELECT sequence, record FROM entries
WHERE project = %(project)s AND blueprint = %(blueprint)s
AND environment = %(environment)s AND step = %(step)s
ORDER BY sequence DESC LIMIT 1;

-- name: append
INSERT INTO entries (project, blueprint, environment, step, sequence, entry_id, record)
SELECT %(project)s, %(blueprint)s, %(environment)s, %(step)s,
    %(sequence)s::bigint, %(entry_id)s, %(record)s
WHERE %(sequence)s = 1 + (
    SELECT coalesce(max(sequence), 0) FROM entries
    WHERE project = %(project)s AND blueprint = %(blueprint)s
    AND environment = %(environment)s AND step = %(step)s
)
ON CONFLICT DO NOTHING;

-- name: entry
SELECT record FROM entries
WHERE project = %(project)s AND blueprint = %(blueprint)s
AND environment = %(environment)s AND step = %(step)s AND sequence = %(sequence)s;

-- name: history
SELECT sequence, record FROM entries
WHERE project = %(project)s AND blueprint = %(blueprint)s
AND environment = %(environment)s AND step = %(step)s
ORDER BY sequence DESC;

-- name: records
SELECT DISTINCT ON (blueprint, environment, step)
    blueprint, environment, step, sequence, record
FROM entries
WHERE project = %(project)s
AND (%(blueprint)s::text IS NULL OR blueprint = %(blueprint)s)
AND (%(environment)s::text IS NULL OR environment = %(environment)s)
ORDER BY blueprint, environment, step, sequence DESC;

-- name: claim
SELECT claim FROM claims
WHERE project = %(project)s AND blueprint = %(blueprint)s AND environment = %(environment)s;

-- name: lock_claim
SELECT pg_advisory_xact_lock(hashtextextended(
    concat_ws('/', %(project)s::text, %(blueprint)s::text, %(environment)s::text), 0
));

-- name: put_claim
INSERT INTO claims (project, blueprint, environment, run_id, claim)
VALUES (%(project)s, %(blueprint)s, %(environment)s, %(run_id)s, %(claim)s)
ON CONFLICT (project, blueprint, environment)
DO UPDATE SET run_id = excluded.run_id, claim = excluded.claim;

-- name: drop_claim
DELETE FROM claims
WHERE project = %(project)s AND blueprint = %(blueprint)s
AND environment = %(environment)s AND run_id = %(run_id)s;

-- name: put_lease
INSERT INTO leases (project, run_id, lease, heartbeat)
VALUES (%(project)s, %(run_id)s, %(lease)s, clock_timestamp())
ON CONFLICT (project, run_id)
DO UPDATE SET lease = excluded.lease, heartbeat = excluded.heartbeat;

-- name: lease
SELECT lease, greatest(0, extract(epoch FROM clock_timestamp() - heartbeat))::float8 FROM leases
WHERE project = %(project)s AND run_id = %(run_id)s;

-- name: drop_lease
DELETE FROM leases WHERE project = %(project)s AND run_id = %(run_id)s;

-- name: put_blob
INSERT INTO blobs (project, name, data) VALUES (%(project)s, %(name)s, %(data)s)
ON CONFLICT (project, name) DO UPDATE SET data = excluded.data;

-- name: create_blob
INSERT INTO blobs (project, name, data) VALUES (%(project)s, %(name)s, %(data)s)
ON CONFLICT (project, name) DO NOTHING;

-- name: blob
SELECT data FROM blobs WHERE project = %(project)s AND name = %(name)s;

-- name: drop_blob
DELETE FROM blobs WHERE project = %(project)s AND name = %(name)s;

-- name: blobs
SELECT name FROM blobs
WHERE project = %(project)s AND starts_with(name, %(prefix)s) ORDER BY name;
