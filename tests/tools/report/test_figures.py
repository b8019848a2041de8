from typing import get_args

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.tools.report.figures import draw, forms_of, write_figures
from pliant.tools.report.figures.plots import MOST_JOBS, bands_of, cumulated, thinned
from pliant.tools.report.figures.style import MUTED, Form, area_colour, ink, run_styles
from pliant.tools.report.read_run import fold
from pliant.tools.report.report import make_report
from tests.builders import cluster, job
from tests.tools.report.runs import first_come, ran, shared, story, submit


@pytest.fixture(scope="module")
def report():
    return make_report([fold(first_come()), fold(shared())])


def test_a_sweep_of_five_policies_and_five_seeds_is_five_bands():
    """Of one job that takes 10 s more with each seed; sizes are in pixels of 100 to the inch."""
    runs = [
        story(submit(job("a"), 4.0), *ran("a", 0, 10 + 10 * seed + at), policy=policy, seed=seed)
        for at, policy in enumerate(("fifo", "ares", "srtf", "tiresias", "shadow-price"))
        for seed in range(5)
    ]
    drawn = draw(make_report(runs))
    figure = drawn["jct-cdf"]
    (plot,) = figure.axes
    assert len(drawn) == 4 + 5  # those of all runs, and the first allocation of each policy
    for looks in ([line.get_color() for line in plot.lines], [line.get_marker() for line in plot.lines]):
        assert len(set(looks)) == 5
    fifo = plot.lines[0]
    assert [list(values) for values in fifo.get_data()] == [[10, 20, 30, 40, 50], [0.2, 0.4, 0.6, 0.8, 1.0]]
    band = plot.collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.x1, band.y0, band.y1) == (10, 50, 0, 1)
    figure.draw_without_rendering()
    boxes = [each.get_window_extent() for each in (figure.legends[0], plot)]
    assert boxes[0].y1 <= boxes[1].y0  # the legend is below the axes
    assert boxes[1].height > 0.5 * figure.bbox.height
    assert boxes[0].x0 >= 0
    assert boxes[0].x1 <= figure.bbox.width
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0] == "fifo (5 seeds)"
    assert drawn["gpu-use"].get_size_inches()[1] < 8


def many_jobs(models):
    names = [f"j{index:03}" for index in range(len(models))]
    arrivals = (submit(job(name, model=model), 4.0) for name, model in zip(names, models, strict=True))
    runs = (event for name in names for event in ran(name, 0, 4))
    return make_report([story(*arrivals, *runs, nodes=cluster(64))])


def test_figures_go_to_a_folder_or_one_file(report, tmp_path):
    names = {path.name for path in write_figures(report, tmp_path / "new" / "figures")}
    stems = ("jct-cdf", "ftf-cdf", "completed", "gpu-use", "allocation-fifo", "allocation-ares")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}  # no predictions
    (written,) = write_figures(report, tmp_path / "paper" / "jct-cdf.pdf")
    assert written == tmp_path / "paper" / "jct-cdf.pdf"
    assert written.read_bytes().startswith(b"%PDF")
    with pytest.raises(UsageError, match='no figure "jct-cfd"; did you mean "jct-cdf"'):
        write_figures(report, tmp_path / "jct-cfd.svg")
    with pytest.raises(UsageError, match='"jpg", expected png, svg, pdf'):
        forms_of("png,jpg")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        write_figures(report, tmp_path / "file" / "figures")


def test_equal_runs_give_equal_files_in_every_form(tmp_path):
    for form in get_args(Form):
        for folder in ("one", "two"):
            write_figures(make_report([fold(shared())]), tmp_path / folder / f"ftf-cdf.{form}")
        one, two = (tmp_path / folder / f"ftf-cdf.{form}" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes(), form


def test_colour_mark_and_dashes_tell_runs_apart():
    fifo, ares, other = fold(first_come()), fold(shared()), fold(first_come(policy="shadow-price"))
    styles = [
        {run.label: style for run, style in zip(made.runs, run_styles(made.runs), strict=True)}
        for made in (make_report([fifo, ares]), make_report([other, ares, fifo]))
    ]
    for policy in ("fifo", "ares"):
        looks = {(each[policy].colour, each[policy].mark, each[policy].dashes) for each in styles}
        assert len(looks) == 1
    assert len({style.colour for style in styles[1].values()}) == 3
    first, second = run_styles(make_report([fold(first_come()), fold(first_come(seed=1))]).runs)
    assert first.colour == second.colour
    assert first.dashes != second.dashes
    assert first.mark != second.mark
    often = ("fifo", "shadow-price", "ares", "pollux", "ones", "elastic-dp", "tiresias")
    made = make_report([fold(first_come(policy=name)) for name in often])
    assert len({style.colour for style in run_styles(made.runs)}) == len(often)
    made = make_report([fold(first_come(policy=f"policy-{number}")) for number in range(8)])
    assert len({style.colour for style in run_styles(made.runs)}) == 8
    assert len({style.mark for style in run_styles(made.runs)}) == 8
    colours = [area_colour(index) for index in range(MOST_JOBS)]
    assert tuple(colours[: len(MUTED)]) == MUTED
    assert len(set(colours)) == MOST_JOBS
    assert (ink("#332288"), ink("#DDCC77")) == ("white", "black")


def test_figures_that_show_nothing_more_are_left_out():
    drawn = draw(many_jobs(["bert"] * (MOST_JOBS + 1)))
    assert set(drawn) == {"jct-cdf", "ftf-cdf", "completed", "gpu-use"}
    assert draw(make_report([story(submit(job("a"), 4.0))])) == {}
    run = story(submit(job("a"), 4.0), Event(0, "start", "a", 1), Event(3, "progress", "a"))
    assert set(draw(make_report([run]))) == {"gpu-use", "allocation-fifo"}


def predicted(name, *, band, total=100.0):
    """A job whose progress was predicted at every tenth of its work: the middle of a band of that width."""
    events = [submit(job(name), total), Event(0, "start", name, 1)]
    for tenth in range(1, 10):
        at = tenth / 10
        found = {"samples_done": at * total, "mean": at, "low": at - band / 2, "high": at + band / 2}
        events.append(Event(tenth, "progress", name, detail={"progress": found}))
    return [*events, Event(10, "finish", name, 0, samples_done=total)]


def test_predicted_progress_of_up_to_four_jobs_is_drawn():
    told = make_report([story(*predicted("a", band=0.2), demand="predicted")])
    drawn = draw(told)["progress-fifo"]
    (plot,) = drawn.axes
    assert plot.get_title() == "a: 9 of 9 intervals held it"
    mean, happened = plot.get_lines()
    assert mean.get_ydata() == pytest.approx(mean.get_xdata())
    assert (list(happened.get_xdata()), list(happened.get_ydata())) == ([0, 1], [0, 1])
    legend = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert legend == ["90 % interval", "predicted, mean", "what happened"]
    events = [event for name in "abcdef" for event in predicted(name, band=0.2)]
    for name in "bd":
        events = [each for each in events if (each.job, each.event) != (name, "progress") or each.time < 5]
    told = make_report([story(*sorted(events, key=lambda event: event.time), nodes=cluster(64))])
    assert [plot.get_title()[0] for plot in draw(told)["progress-fifo"].axes] == ["a", "c", "e", "f"]


def test_axes_legend_and_lines_say_what_they_show(report):
    drawn = draw(report)
    ((jct,), (held,), (done,)) = (drawn[name].axes for name in ("jct-cdf", "allocation-ares", "completed"))
    assert (jct.get_xlabel(), jct.get_ylabel()) == ("JCT, s", "share of finished jobs")
    assert (held.get_xlabel(), held.get_ylabel()) == ("time since the first submission, s", "GPUs")
    assert done.get_xlabel() == "time since the first submission, s"
    legend = [text.get_text() for text in drawn["jct-cdf"].legends[0].get_texts()]
    assert (jct.get_title("left"), legend) == (
        "Job completion time (simulated)",
        ["fifo (1 job missing)", "ares"],
    )
    fifo, ares = done.get_lines()
    assert list(fifo.get_xdata()) == [0, 120, 240, 240]  # the third job never started
    assert list(ares.get_ydata()) == [0, 1, 2, 3, 3]


def test_bands_are_of_jobs_or_of_models_where_there_are_many(report):
    band = next(band for band in bands_of(report.runs[1]) if band.name == "b")
    held = dict(zip(band.times_s, band.gpus, strict=True))
    assert {time: held[time] for time in (0, 10, 20, 82, 196)} == {0: 0, 10: 2, 20: 0, 82: 2, 196: 0}
    bands = bands_of(many_jobs(["bert", "vgg"] * MOST_JOBS).runs[0])
    assert [(band.name, max(band.gpus)) for band in bands] == [("bert", MOST_JOBS), ("vgg", MOST_JOBS)]
    models = [f"m{index:02}" for index in range(12) for _ in range(3)]
    bands = bands_of(many_jobs(models).runs[0])
    assert [band.name for band in bands] == [*(f"m{index:02}" for index in range(8)), "other"]
    assert max(bands[-1].gpus) == 4 * 3


def test_long_runs_are_thinned_and_distributions_end_at_one():
    times = [float(time) for time in range(101)]
    held = [float(time % 2) for time in range(100)] + [0.0]
    assert thinned(times, held) == (times, held)
    grid, means = thinned(times, held, points=10)
    assert grid == pytest.approx([10.0 * index for index in range(11)])
    assert means[:10] == pytest.approx([0.5] * 10)
    assert cumulated([1.0, 3.0]) == ([1.0, 1.0, 3.0], [0.0, 0.5, 1.0])
