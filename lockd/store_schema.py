"""The tables of the store, and how an older store becomes this one.

Always holds: `MIGRATIONS[n]` takes a store from `user_version` n to n + 1, in one transaction; a new store runs them
all. Blobs are zlib. Events are append-only, each bound to the one before by hash; AUTOINCREMENT never gives a number
twice, so that a cut-off end is seen.
Never: a migration that loses what an older lockd recorded.
"""

from __future__ import annotations

MIGRATIONS = (
    """
    CREATE TABLE generations (
        id INTEGER PRIMARY KEY, number INTEGER NOT NULL, digest TEXT NOT NULL UNIQUE, previous TEXT, at TEXT NOT NULL,
        by TEXT NOT NULL, why TEXT NOT NULL, environment TEXT NOT NULL, launch TEXT NOT NULL, lock_text BLOB NOT NULL,
        origin TEXT NOT NULL, pending INTEGER NOT NULL);
    CREATE TABLE manifests (digest TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE generation_manifests (
        generation INTEGER NOT NULL REFERENCES generations (id) ON DELETE CASCADE, fact TEXT NOT NULL,
        manifest TEXT NOT NULL, PRIMARY KEY (generation, fact)) WITHOUT ROWID;
    CREATE TABLE generation_entries (
        generation INTEGER NOT NULL REFERENCES generations (id) ON DELETE CASCADE, fact TEXT NOT NULL,
        tokens BLOB NOT NULL, PRIMARY KEY (generation, fact)) WITHOUT ROWID;
    CREATE TABLE states (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, environment TEXT NOT NULL, at TEXT NOT NULL,
        facts BLOB NOT NULL);
    CREATE TABLE state_manifests (
        state INTEGER NOT NULL REFERENCES states (id) ON DELETE CASCADE, fact TEXT NOT NULL,
        manifest TEXT NOT NULL, PRIMARY KEY (state, fact)) WITHOUT ROWID;
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL, fact TEXT, message TEXT NOT NULL,
        by TEXT, run INTEGER, generation INTEGER, state INTEGER, hash TEXT NOT NULL, previous_hash TEXT NOT NULL);
    CREATE INDEX events_at ON events (at);
    CREATE INDEX events_fact ON events (fact);
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY AUTOINCREMENT, started TEXT NOT NULL, ended TEXT, environment TEXT NOT NULL,
        launch TEXT NOT NULL, generation INTEGER, state INTEGER, body TEXT NOT NULL);
    CREATE TABLE objects (
        digest TEXT PRIMARY KEY, size INTEGER NOT NULL, stored INTEGER NOT NULL, at TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE generation_objects (
        generation INTEGER NOT NULL REFERENCES generations (id) ON DELETE CASCADE, fact TEXT NOT NULL,
        path TEXT NOT NULL, object TEXT NOT NULL, meta TEXT NOT NULL, PRIMARY KEY (generation, path)) WITHOUT ROWID;
    CREATE TABLE standing (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL);
    """,
    # when a state was seen; one that lasts stands once. A manifest with a base holds what is other than in that one
    """
    CREATE TABLE sightings (
        id INTEGER PRIMARY KEY, at TEXT NOT NULL, state INTEGER NOT NULL REFERENCES states (id) ON DELETE CASCADE);
    CREATE INDEX sightings_at ON sightings (at);
    CREATE INDEX events_kind ON events (kind);
    ALTER TABLE manifests ADD COLUMN base TEXT REFERENCES manifests (digest);
    INSERT INTO sightings (at, state) SELECT at, state FROM events
        WHERE kind IN ('drift', 'heal') AND state IN (SELECT id FROM states) ORDER BY id;
    """,
)
VERSION = len(MIGRATIONS)
