"""Watching: hints that something changed, and who did it. The daemon's door is `watcher.Watcher`; hints are never
facts.

Flow: `fanotify`/`inotify` (bytes → Raw) → `places` (what is watched where) → `emitter` (Raw → Hint, `who` asked at
once) → watchdog's dispatcher → the daemon. `mounts` says what can be watched at all, `cookie` proves that every event
was read.
"""
