-- Every entry carries the whole record as JSON; the newest is the state, the rest is history.
CREATE TABLE entries (
    blueprint TEXT NOT NULL,
    environment TEXT NOT NULL,
    step TEXT NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence >= 1),
    entry_id TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (blueprint, environment, step, sequence)
);

CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
BEGIN
    SELECT RAISE(ABORT, 'an entry is never changed');
END;

CREATE TRIGGER entries_are_never_removed BEFORE DELETE ON entries
BEGIN
    SELECT RAISE(ABORT, 'an entry is never removed');
END;

CREATE TABLE claims (
    blueprint TEXT NOT NULL,
    environment TEXT NOT NULL,
    run_id TEXT NOT NULL,
    claim TEXT NOT NULL,
    PRIMARY KEY (blueprint, environment)
);

-- The heartbeat is a Julian day by this database's own clock.
CREATE TABLE leases (
    run_id TEXT NOT NULL PRIMARY KEY,
    lease TEXT NOT NULL,
    heartbeat REAL NOT NULL
);

CREATE TABLE blobs (
    name TEXT NOT NULL PRIMARY KEY,
    data BLOB NOT NULL
);

-- Written and emptied again to prove that the disk takes a record.
CREATE TABLE probes (
    data BLOB NOT NULL
);
