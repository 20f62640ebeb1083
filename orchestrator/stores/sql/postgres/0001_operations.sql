-- Every entry carries the whole record as JSON; the newest is the state, the rest is history.
CREATE TABLE entries (
    project text NOT NULL,
    blueprint text NOT NULL,
    environment text NOT NULL,
    step text NOT NULL,
    sequence bigint NOT NULL CHECK (sequence >= 1),
    entry_id text NOT NULL,
    record text NOT NULL,
    PRIMARY KEY (project, blueprint, environment, step, sequence)
);

CREATE FUNCTION entries_are_permanent() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'an entry is never changed or removed'; END $$;

CREATE TRIGGER entries_are_permanent BEFORE UPDATE OR DELETE ON entries
FOR EACH ROW EXECUTE FUNCTION entries_are_permanent();

CREATE TABLE claims (
    project text NOT NULL,
    blueprint text NOT NULL,
    environment text NOT NULL,
    run_id text NOT NULL,
    claim text NOT NULL,
    PRIMARY KEY (project, blueprint, environment)
);

-- The heartbeat is by this server's own clock.
CREATE TABLE leases (
    project text NOT NULL,
    run_id text NOT NULL,
    lease text NOT NULL,
    heartbeat timestamptz NOT NULL,
    PRIMARY KEY (project, run_id)
);

CREATE TABLE blobs (
    project text NOT NULL,
    name text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (project, name)
);
