"""`apdo solve`: the exact optimum of a finite CMDP."""

from pathlib import Path

from apdo.cli import completing, values
from apdo.cli.declaring import Command, Given, option, place
from apdo.errors import InvalidInput, NumericalFailure


def solve(given: Given) -> None:
    """Print and write the optimum, its multipliers and its certificate."""
    file, changes = Path(given.names[0]), given.changes
    out = Path(changes.get("out", file.parent / f"{file.stem}-optimum"))
    if not out.name:
        raise InvalidInput(f"--out {changes.get('out')!r} is no name for the results; try --out optimum.")
    results = out.with_name(f"{out.name}.npz")
    if results.resolve() == file.resolve():
        raise InvalidInput(f"the results would replace the problem {file}; choose another --out.")
    from apdo import exact

    cmdp = exact.load(file)
    if "limits" in changes:
        cmdp = cmdp.with_limits(values.numbers(changes, "limits"))
    optimum = exact.solve(cmdp)
    print("\n".join(exact.describe(cmdp, optimum)))
    exact.save_solution(optimum, results)
    print(f"\nresults: {results}")
    if cmdp.constraints:
        from apdo.report import trade_off

        curves = [
            trade_off.Curve(
                name=cmdp.cost_names[i],
                limits=curve.limits,
                values=curve.values,
                multipliers=curve.multipliers[:, i],
                limit=float(cmdp.limits[i]),
                value=optimum.value,
                multiplier=float(optimum.multiplier_low[i]),
            )
            for i, curve in enumerate(exact.trade_offs(cmdp, gap=1e-5))
        ]
        pictures = trade_off.plot(curves, out, f"{file.stem}: the price of each limit")
        print(f"picture: {', '.join(str(picture) for picture in pictures)}")
    if not optimum.certificate.holds:
        raise NumericalFailure("the certificate does not hold, so that the optimum is not proved to the tolerance.")


COMMAND = Command(
    "solve",
    solve,
    usage="solve FILE",
    what="the exact optimum of a finite CMDP, with multipliers and proof",
    about="Solves a finite CMDP exactly. FILE is an .npz of named arrays (docs/ground-truth.md says which). Prints the "
    "optimal return, costs, multipliers, policy and the certificate of optimality; writes all of it to PREFIX.npz and "
    "the optimal return against each limit to PREFIX.png and PREFIX.svg. Limits that no policy keeps are an error "
    "(exit status 2) that says what the least costs are; a certificate that does not hold is one too (exit status 3).",
    places=[place("file", completing.files)],
    options=[
        option("--limits", "D,D,...", "other limits than the file's, one for each constraint"),
        option(
            "--out",
            "PREFIX",
            "where the results go (default: FILE without its ending, and -optimum)",
            completing.files,
        ),
    ],
    needs="solve needs a file with a finite CMDP, as in: apdo solve problem.npz.",
    fewest=1,
)
