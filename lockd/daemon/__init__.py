"""The daemon: keeps the verdict of one policy true within a moment of any change, remembers when and by whom, answers.

Threads: `serve` owns signals, timers and the socket (`server`); `decide` alone looks and judges, fed by hints that
the watcher's thread hands to `gather`; `scribe` writes the history; `reader` reads every byte, slowly.
Always holds: one thread decides; an answer is never older than the last event before the question; what cannot be told
is `unknown` with its reason. No verdict lies in a file that could outlive the daemon.
Never: asks for permission events, or changes anything but lockd's own state and runtime folders.
"""
