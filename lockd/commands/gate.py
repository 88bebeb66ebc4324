"""`lockd gate install|remove|status site|systemd|slurm`: the means by which a launch is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from lockd.gates.site import NotThere, Status
    from lockd.session import Session

_HELP = {
    "install": "put a gate in place, or bring it up to date",
    "remove": "take a gate out, without a trace",
    "status": "say how a gate stands",
}


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("gate", help="site hook in a virtualenv, systemd drop-in, Slurm")
    deeds = parser.add_subparsers(dest="deed", metavar="install|remove|status", required=True)
    for deed, text in _HELP.items():
        kinds = deeds.add_parser(deed, help=text).add_subparsers(
            dest="kind", metavar="site|systemd|slurm", required=deed != "status"
        )
        _site(
            kinds.add_parser("site", help="a hook in a virtualenv: fires for the launches that the policy names"), deed
        )
        _systemd(kinds.add_parser("systemd", help="a drop-in for the unit that starts the training"), deed)
        _slurm(kinds.add_parser("slurm", help="a TaskProlog for jobs, a HealthCheckProgram for nodes"), deed)
    parser.set_defaults(run=run)


def _site(parser: argparse.ArgumentParser, deed: str) -> None:
    parser.add_argument("--env", metavar="NAME", help="the environment, by its name in the policy")
    _trust(parser, deed)


def _systemd(parser: argparse.ArgumentParser, deed: str) -> None:
    parser.add_argument("unit", help="the service that starts the training, e.g. train.service")
    parser.add_argument("--root", default="/", metavar="DIR", help="the root folder of the system whose unit it is")
    _trust(parser, deed)


def _slurm(parser: argparse.ArgumentParser, deed: str) -> None:
    parser.add_argument("--folder", default="/etc/lockd/slurm", metavar="DIR", help="where the two scripts lie")
    _trust(parser, deed)


def _trust(parser: argparse.ArgumentParser, deed: str) -> None:
    if deed == "install":
        text = "bake in: trust files owned outside this user namespace"
        parser.add_argument("--trust-unmapped", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    if args.kind is None:
        return _run_every(args)
    deeds = {"site": _run_site, "systemd": _run_systemd, "slurm": _run_slurm}
    return deeds[args.kind](args)


# -- whatever there is


def _run_every(args: argparse.Namespace) -> int:
    """`gate status` of no kind in particular. Exit 0: something gates this policy, and nothing is wrong with it."""
    from lockd import cli
    from lockd.gates import site, slurm, systemd
    from lockd.gates.owned import Told

    session = _session(args)
    lines, documents, sound = [], [], []
    for rule in session.policy.python:
        try:
            status = site.status(session.policy, site.place(session.policy, rule.name), session.state)
        except site.NotThere as error:
            lines.append(str(error))
            continue
        lines.append(_told(status))
        documents.append(_document(status))
        sound += [not status.trouble] if status.is_ours or status.trouble else []
        if status.trouble:
            cli.warn(f"{status.trouble}; {status.hint}")
    found: list[tuple[dict[str, Any], Told]] = [
        ({"kind": "systemd", "unit": unit.name, "drop_in": unit.drop_in}, systemd.status(unit))
        for unit in systemd.gated(session.policy.path)
    ]
    found.append(({"kind": "slurm", "folder": slurm.FOLDER}, slurm.status(slurm.FOLDER)))
    for document, told in found:
        if told.installed:
            lines.append(told.text)
            documents.append({**document, "installed": True})
            sound.append(told.sound)
    if not any(document["installed"] for document in documents):
        lines.append("no gate: lockd gate install puts one in; lockd run is the gate by hand")
    _say(args, "\n".join(lines), {"gates": documents})
    return 0 if sound and all(sound) else 1  # as for one kind: 1 where none is there


# -- site


def _run_site(args: argparse.Namespace) -> int:
    from lockd import cli
    from lockd.gates import site

    session = _session(args)
    policy, state = session.policy, session.state
    try:
        where = site.place(policy, args.env)
    except site.NotThere as error:
        if args.deed != "remove":
            raise
        return _forget(args, session, error)
    if args.deed == "remove":
        gone = site.remove(policy, where, state)
        text = f"the site hook is out of {where.prefix}" if gone else f"{where.prefix} had no site hook of this policy"
        _say(args, text, {"removed": gone, **_document(site.status(policy, where, state))})
        return 0
    if args.deed == "install":
        for path in site.gone_policies(where):
            cli.warn(f"{path} is gone: the hook no longer serves that policy")
        status = site.install(policy, where, state, trust_unmapped=args.trust_unmapped)
    else:
        status = site.status(policy, where, state)
    _say(args, _told(status), _document(status))
    if status.trouble:
        cli.warn(f"{status.trouble}; {status.hint}")
    return 0 if status.is_ours or args.deed == "install" else 1


def _forget(args: argparse.Namespace, session: Session, error: NotThere) -> int:
    """There is nothing to take a hook out of: none is expected there any more."""
    from lockd import cli
    from lockd.gates import site

    site.forget(session.state, error.name)
    text = f"{error.what}, so neither is a hook: none is expected there any more"
    where = session.policy.path
    cli.warn(f"one that was moved still holds its hook: to take that out, write its new path into {where} first")
    document = {"kind": "site", "env": error.name, "prefix": error.where, "installed": False, "removed": False}
    _say(args, text, {**document, "policies": [], "trouble": None})
    return 0


def _told(status: Status) -> str:
    if not status.installed:
        return f"no site hook in {status.place.prefix}"
    count = len(status.policies)
    who = f"for {', '.join(status.policies)}" if count else "for no policy"
    return f"site hook in {status.place.folder} {who}"


def _document(status: Status) -> dict[str, Any]:
    return {
        "kind": "site",
        "env": status.place.name,
        "prefix": status.place.prefix,
        "installed": status.installed,
        "policies": list(status.policies),
        "trouble": status.trouble or None,
    }


# -- systemd and Slurm


def _run_systemd(args: argparse.Namespace) -> int:
    from lockd.gates import systemd

    unit = systemd.find(args.unit, args.root)
    if args.deed == "install":
        session = _session(args)
        told = systemd.install(unit, session.policy.path, trust_unmapped=args.trust_unmapped)
    else:
        told = systemd.remove(unit) if args.deed == "remove" else systemd.status(unit)
    _say(args, told.text, {"kind": "systemd", "unit": unit.name, "drop_in": unit.drop_in, "installed": told.installed})
    return 0 if told.sound else 1


def _run_slurm(args: argparse.Namespace) -> int:
    from lockd.gates import slurm

    if args.deed == "install":
        session = _session(args)
        told = slurm.install(args.folder, session.policy.path, trust_unmapped=args.trust_unmapped)
    else:
        told = slurm.remove(args.folder) if args.deed == "remove" else slurm.status(args.folder)
    _say(args, told.text, {"kind": "slurm", "folder": args.folder, "installed": told.installed})
    return 0 if told.sound else 1


def _session(args: argparse.Namespace) -> Session:
    from lockd.session import open_session

    if not hasattr(args, "trust_unmapped"):  # to look at a gate, or to take it out, needs no more trust than it has
        args.trust_unmapped = True
    return open_session(args)


def _say(args: argparse.Namespace, text: str, document: dict[str, Any]) -> None:
    import json

    from lockd import cli
    from lockd.report.text import safe

    cli.emit(json.dumps({"schema": 1, **document}) if args.json else "\n".join(map(safe, text.splitlines())))
