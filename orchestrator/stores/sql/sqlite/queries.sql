-- name: newest
SELECT sequence, record FROM entries
WHERE blueprint = :blueprint AND environment = :environment AND step = :step
ORDER BY sequence DESC LIMIT 1;

-- name: append
INSERT INTO entries (blueprint, environment, step, sequence, entry_id, record)
SELECT :blueprint, :environment, :step, :sequence, :entry_id, :record
WHERE :sequence = 1 + (
    SELECT coalesce(max(sequence), 0) FROM entries
    WHERE blueprint = :blueprint AND environment = :environment AND step = :step
);

-- name: entry
SELECT record FROM entries
WHERE blueprint = :blueprint AND environment = :environment AND step = :step
AND sequence = :sequence;

-- name: history
SELECT sequence, record FROM entries
WHERE blueprint = :blueprint AND environment = :environment AND step = :step
ORDER BY sequence DESC;

-- name: records
SELECT blueprint, environment, step, sequence, record
FROM (
    SELECT blueprint, environment, step, max(sequence) AS sequence FROM entries
    WHERE (:blueprint IS NULL OR blueprint = :blueprint)
    AND (:environment IS NULL OR environment = :environment)
    GROUP BY blueprint, environment, step
)
JOIN entries USING (blueprint, environment, step, sequence)
ORDER BY blueprint, environment, step;

-- name: claim
SELECT claim FROM claims WHERE blueprint = :blueprint AND environment = :environment;

-- name: lock_claim
-- The transaction holds the whole file.
SELECT 1;

-- name: put_claim
INSERT INTO claims (blueprint, environment, run_id, claim)
VALUES (:blueprint, :environment, :run_id, :claim)
ON CONFLICT (blueprint, environment)
DO UPDATE SET run_id = excluded.run_id, claim = excluded.claim;

-- name: drop_claim
DELETE FROM claims
WHERE blueprint = :blueprint AND environment = :environment AND run_id = :run_id;

-- name: put_lease
INSERT INTO leases (run_id, lease, heartbeat) VALUES (:run_id, :lease, julianday('now'))
ON CONFLICT (run_id) DO UPDATE SET lease = excluded.lease, heartbeat = excluded.heartbeat;

-- name: lease
SELECT lease, max(0.0, (julianday('now') - heartbeat) * 86400.0) FROM leases
WHERE run_id = :run_id;

-- name: drop_lease
DELETE FROM leases WHERE run_id = :run_id;

-- name: put_blob
INSERT INTO blobs (name, data) VALUES (:name, :data)
ON CONFLICT (name) DO UPDATE SET data = excluded.data;

-- name: create_blob
INSERT INTO blobs (name, data) VALUES (:name, :data) ON CONFLICT (name) DO NOTHING;

-- name: blob
SELECT data FROM blobs WHERE name = :name;

-- name: drop_blob
DELETE FROM blobs WHERE name = :name;

-- name: blobs
SELECT name FROM blobs WHERE substr(name, 1, length(:prefix)) = :prefix ORDER BY name;

-- name: put_probe
INSERT INTO probes (data) VALUES (zeroblob(:size));

-- name: drop_probes
DELETE FROM probes;

-- name: size
SELECT page_count * page_size FROM pragma_page_count, pragma_page_size;

-- name: check
PRAGMA quick_check(1);
