"""The benchmark's own arithmetic, judgement and page; and that one contender's failure is not the others'."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import meter, report
from bench.__main__ import lasted
from bench.board import Board
from bench.catalogue import WORKS
from bench.contenders import BARE, BARE_JOIN, CONTENDERS, HOLDFAST, Contender
from bench.contenders.protocol import Order, chunks
from bench.environments import NotRun, run_command
from bench.figures import DISTURBED, Absence, Figure, Figures, Sample, Subject, Thrown, percentile, ratio
from bench.meter import UNKNOWN, Lap, Reading
from bench.players import Player
from bench.progress import Progress
from bench.results import Results
from bench.scale import FULL, QUICK, Scale
from bench.session import Session
from bench.targets import SIZED, TARGETS, Target, against_best_postgres_peer, judge, judge_all
from bench.works import backlog, drain, latency, routes

STAT = "cpu  1000 50 200 5000 300 10 40 400 7 0\ncpu0 1 2 3\n"
RATE = Subject("rate", "some work", "jobs/s")


def figures(**values: list[float]) -> Figures:
    found = Figures()
    for contender, samples in values.items():
        for value in samples:
            found.add(RATE, contender, Sample(value))
    return found


def target(sense: str, limit: float) -> Target:
    return Target("work", "rate", sense, limit, "jobs/s", lambda found: found.of(RATE.key)[0].median)  # type: ignore[arg-type]


class TestMeter:
    def test_waiting_is_not_busy_and_stolen_time_is_neither(self) -> None:
        ticks = meter._TICKS
        reading = meter.parse(STAT, at=1.0)
        assert reading.busy * ticks == pytest.approx(1000 + 50 + 200 + 10 + 40)
        assert reading.steal * ticks == pytest.approx(400)
        assert reading.total * ticks == pytest.approx(1000 + 50 + 200 + 5000 + 300 + 10 + 40 + 400)

    def test_a_lap_is_the_difference_of_two_readings(self) -> None:
        lap = meter.lap(Reading(10.0, 100.0, 5.0, 300.0, 40.0), Reading(12.0, 103.0, 6.0, 304.0, 42.0))
        assert lap == Lap(seconds=2.0, busy=3.0, own=2.0, steal=0.25, others=0.25)

    def test_a_lap_shorter_than_a_tick_has_no_shares(self) -> None:
        lap = meter.lap(Reading(1.0, 1.0, 0.0, 4.0, 1.0), Reading(1.001, 1.0, 0.0, 4.0, 1.0))
        assert (lap.steal, lap.others) == (0.0, 0.0)

    def test_what_others_took_is_never_below_nothing(self) -> None:
        assert meter.lap(Reading(0.0, 0.0, 0.0, 0.0, 0.0), Reading(1.0, 1.0, 0.0, 2.0, 1.5)).others == 0.0

    def test_what_the_benchmark_uses_itself_is_neither_the_contenders_nor_others(self) -> None:
        lap = meter.lap(Reading(0.0, 0.0, 0.0, 0.0, 0.0, 1.0), Reading(1.0, 3.0, 0.0, 4.0, 1.5, 2.0))
        assert (lap.own, lap.others) == (1.5, 0.125)

    def test_a_process_that_ends_while_all_are_read_is_missed_by_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Process 3, a child of 2 with 4 seconds, ended after 2 was read and before its own turn.
        missed = {1: meter.Process(0, 5.0, 1.0), 2: meter.Process(1, 0.5, 2.0), 9: meter.Process(0, 7.0, 0.0)}
        whole = missed | {2: meter.Process(1, 0.5, 6.0)}
        looks = iter([missed, whole, whole])
        monkeypatch.setattr(meter, "_processes", lambda: next(looks))
        assert meter.used_below(1) == (7.5, 5.0)

    def test_cpu_is_shared_out_among_the_jobs(self) -> None:
        sample = Sample.of(7.0, Lap(seconds=2.0, busy=3.0, own=2.0, steal=0.1, others=0.2), jobs=20_000)
        assert [sample.cpu_us, sample.own_us] == pytest.approx([150, 100])
        assert math.isnan(Sample.of(7.0, Lap(1.0, 1.0, 1.0, 0.0, 0.0)).cpu_us)

    def test_a_family_is_all_descendants_whatever_they_are_called(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for pid, name, parent in ((10, "postgres: a) (b", 1), (11, "x y", 10), (12, "z", 11), (20, "other", 1)):
            (tmp_path / str(pid)).mkdir()
            times = "100 50 30 20"  # its own, and those of children that have ended
            (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 0 0 0 0 0 0 0 0 0 {times} 0 0")
        monkeypatch.setattr(meter, "PROC", tmp_path)
        assert meter.family(10) == {10, 11, 12}
        assert meter.cpu_seconds({10, 12}) * meter._TICKS == pytest.approx(400)
        assert meter.cpu_seconds({99}) == 0.0
        assert math.isnan(meter.resident_mb(99))


class TestBoard:
    def test_each_worker_counts_in_its_own_slot(self, tmp_path: Path) -> None:
        board = Board.create(tmp_path / "board", workers=3)
        other = Board(tmp_path / "board")
        for n in range(4):
            other.ran(2, n)
        board.ran(0, 9)
        assert board.counts == other.counts == [1, 0, 4]
        assert board.total == 5

    def test_a_delay_is_from_the_return_of_enqueue_to_the_start(self, tmp_path: Path) -> None:
        board = Board.create(tmp_path / "board", workers=1, jobs=3)
        board.sent(0)
        board.ran(0, 0)
        board.ran(0, 1)
        board.sent(1)
        (after, before) = board.delays()
        assert after >= 0 >= before


class TestFigures:
    def test_a_percentile_is_a_value_that_was_measured(self) -> None:
        values = [float(n) for n in range(1, 101)]
        assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)
        assert math.isnan(percentile([], 0.5))

    def test_rounds_are_compared_each_with_itself(self) -> None:
        # The machine was twice as fast in the second round and ten times slower in the third.
        found = figures(holdfast=[100, 200, 10], peer=[50, 100, 5])
        assert ratio(*found) == 2.0

    def test_without_a_partner_for_each_round_the_medians_are_compared(self) -> None:
        assert ratio(*figures(holdfast=[100, 200, 300], peer=[50])) == 4.0

    def test_there_is_no_multiple_of_nothing(self) -> None:
        assert math.isnan(ratio(*figures(holdfast=[1, 2], peer=[0, -3])))

    def test_a_figure_leaves_out_what_is_not_known(self) -> None:
        figure = Figure(RATE, "x", [Sample(1.0), Sample(3.0, cpu_us=5.0, steal=0.5)])
        assert (figure.median, figure.cpu_us, figure.steal) == (2.0, 5.0, 0.5)
        assert math.isnan(figure.others)


class TestTargets:
    @pytest.mark.parametrize(
        ("sense", "limit", "verdict"),
        [("≥", 10, "met"), ("≥", 10.1, "missed"), ("≤", 10, "met"), ("≤", 9.9, "missed"), ("<", 10, "missed")],
    )
    def test_a_target_is_met_at_its_limit(self, sense: str, limit: float, verdict: str) -> None:
        assert judge(target(sense, limit), figures(holdfast=[10.0])).verdict == verdict

    def test_what_was_not_measured_is_neither_met_nor_missed(self) -> None:
        assert {each.verdict for each in judge_all(Figures())} == {"not measured"}
        assert judge(target("≥", 1), figures(holdfast=[UNKNOWN])).verdict == "not measured"

    def test_a_target_about_a_size_is_not_judged_on_a_smaller_one(self) -> None:
        found = Figures()
        found.add(backlog.EMPTY, HOLDFAST, Sample(100.0))
        found.add(backlog.PENDING, HOLDFAST, Sample(99.0))
        (pending, finished) = judge_all(found, ["backlog"], full=False)
        assert (pending.verdict, finished.verdict) == ("too small to tell", "not measured")

    def test_every_size_is_one_of_a_target(self) -> None:
        assert {each.work for targets in TARGETS.values() for each in targets} >= SIZED

    def test_every_work_has_targets(self) -> None:
        assert list(TARGETS) == [work.name for work in WORKS]

    def test_the_best_peer_is_the_best_on_the_same_kind_of_store(self) -> None:
        found = Figures()
        for name, value in ((HOLDFAST, 2.0), ("pgqueuer", 4.0), ("saq", 8.0), ("celery", 1.0), (BARE, 0.5)):
            found.add(latency.P50, name, Sample(value))
        assert against_best_postgres_peer(latency.P50)(found) == 0.5
        found.add(latency.DEFAULT_P50, "procrastinate", Sample(1.0))  # as it comes it is better than any at its best
        assert against_best_postgres_peer(latency.P50, latency.DEFAULT_P50)(found) == 2.0

    def test_one_false_empty_answer_in_any_round_is_too_many(self) -> None:
        found = Figures()
        for value in (0.0, 1.0, 0.0):
            found.add(routes.EMPTY, HOLDFAST, Sample(value))
        (empty,) = [each for each in judge_all(found, ["routes"]) if each.verdict != "not measured"]
        assert (empty.measured, empty.verdict) == (1.0, "missed")

    def test_cpu_of_a_job_is_of_worker_and_database_not_of_the_machine(self) -> None:
        found = Figures()
        found.add(drain.ONE, HOLDFAST, Sample(1.0, cpu_us=90.0, own_us=49.0))
        (measured,) = [each for each in judge_all(found, ["drain"]) if each.target.unit == "µs/job"]
        assert (measured.measured, measured.verdict) == (49.0, "met")

    def test_defaults_are_compared_with_defaults_and_with_the_best(self) -> None:
        found = Figures()
        for subject, name, value in (
            (drain.DEFAULT, HOLDFAST, 30.0),
            (drain.DEFAULT, "pgqueuer", 10.0),
            (drain.ONE, "pgqueuer", 25.0),
        ):
            found.add(subject, name, Sample(value))
        judged = [each for each in judge_all(found, ["drain"]) if each.verdict != "not measured"]
        assert [(each.measured, each.verdict) for each in judged] == [(3.0, "met"), (1.2, "missed")]

    def test_a_verdict_on_a_disturbed_figure_says_so(self) -> None:
        found = Figures()
        found.add(drain.ONE, HOLDFAST, Sample(30_000.0, others=0.3))
        found.add(drain.ONE, BARE, Sample(20_000.0))
        found.add(drain.TWO, HOLDFAST, Sample(30_000.0, others=0.05))
        judged = [each for each in judge_all(found, ["drain"]) if each.verdict != "not measured"]
        assert [(each.target.what, each.disturbed) for each in judged] == [
            ("rate", True),
            ("against the bare loop", True),
            ("rate", False),
        ]
        assert [row[-1] for row in report.target_table(judged)[1:]] == ["met, disturbed", "met, disturbed", "met"]

    def test_a_large_table_is_compared_with_an_empty_one(self) -> None:
        found = Figures()
        for subject, value in ((backlog.EMPTY, 100.0), (backlog.PENDING, 86.0), (backlog.FINISHED, 84.0)):
            found.add(subject, HOLDFAST, Sample(value))
        assert [each.verdict for each in judge_all(found, ["backlog"])] == ["met", "missed"]


class TestPage:
    def rendered(self) -> report.Report:
        found = Figures()
        for round in range(3):
            found.add(drain.ONE, HOLDFAST, Sample(13_000.0 + round, 80.0, 78.0, 0.02, 0.04), note="batch 200")
            found.add(drain.ONE, "pgqueuer", Sample(6_500.0, 128.0, 127.0, 0.0, 0.0))
        return report.Report(
            scale="quick",
            rounds="3 rounds.",
            machine=[("date", "2030-01-02"), ("processor", "Abacus | 2 cores")],
            contenders=[each for each in CONTENDERS if each.name in (HOLDFAST, "pgqueuer")],
            works=[("Drain", drain.HOW, (drain.ONE.key, drain.TWO.key)), ("Latency", "", (latency.P50.key,))],
            figures=found,
            judged=judge_all(found, ["drain"]),
            absences=[Absence("drain", "celery", "no redis-server,\nand none could be had")],
            thrown=[Thrown("drain", HOLDFAST, 0.5), Thrown("drain", "pgqueuer", 0.2)],
            notes="Nothing was missed.\n",
        )

    def test_it_tells_the_machine_the_verdicts_and_what_was_said_by_hand(self) -> None:
        text = report.page(self.rendered())
        assert "| date | 2030-01-02 |" in text
        assert "| drain, one worker process | rate | ≥ 12,000 jobs/s | 13,001 jobs/s | met |" in text
        assert "| drain, one worker process | against pgqueuer at its best | ≥ 2 × | 2.00 × | met |" in text
        assert "| drain, two worker processes | rate | ≥ 20,000 jobs/s |  | not measured |" in text
        assert "## What is missed, and why\n\nNothing was missed.\n" in text
        assert "- drain: celery: no redis-server, and none could be had" in text
        assert "pgqueuer==" in text

    def test_every_figure_stands_beside_its_cost_and_the_disturbance(self) -> None:
        text = report.page(self.rendered())
        assert "| holdfast | 13,001 jobs/s | 13,000 to 13,002 |  | 80 | 78 | 2 % | 4 % | batch 200 |" in text
        assert "| pgqueuer | 6,500 jobs/s | 6,500 to 6,500 | 2.00× | 128 | 127 | 0 % | 0 % |  |" in text

    def test_it_tells_how_many_runs_were_thrown_away(self) -> None:
        told = self.rendered()
        text = " ".join(report.page(told).split())
        assert "were thrown away and repeated: 2 (drain 2); no figure holds one." in text
        quiet = " ".join(report.page(replace(told, thrown=[])).split())
        assert "No run was one in which others had more than 10 % of the machine." in quiet

    def test_a_figure_of_disturbed_rounds_says_so_beside_itself(self) -> None:
        told = self.rendered()
        told.figures.add(drain.ONE, HOLDFAST, Sample(13_003.0, steal=0.06, others=0.06))
        text = report.page(told)
        assert "| batch 200; disturbed in 1 of 4 rounds |" in text
        assert "figures that hold one, because its repeats were no better or too many: 1, see their notes." in " ".join(
            text.split()
        )

    def test_a_work_without_figures_is_left_out(self) -> None:
        assert "### Latency" not in report.page(self.rendered())

    def test_a_table_stays_a_table_whatever_is_in_it(self) -> None:
        assert r"Abacus \| 2 cores" in report.page(self.rendered())
        assert all(len(line) <= 120 for line in report.page(self.rendered()).splitlines() if not line.startswith("|"))

    def test_the_terminal_shows_the_same(self) -> None:
        text = report.terminal(self.rendered())
        assert "13,001 jobs/s" in text
        assert "targets: 2 met, 1 missed, 8 not measured" in text
        assert "not measured: drain: celery: no redis-server" in text

    def test_it_can_be_made_again_from_what_was_saved(self, tmp_path: Path) -> None:
        before = self.rendered()
        results = Results(
            scale="quick",
            machine=before.machine,
            works=["drain"],
            contenders=[HOLDFAST],
            figures=before.figures,
            absences=before.absences,
            thrown=before.thrown,
        )
        before.figures.add(drain.ONE, BARE, Sample(20_000.0))  # nothing is known of its cost
        results.save(tmp_path / "results.json")
        found = Results.load(tmp_path / "results.json")
        assert report.page(replace(before, figures=found.figures)) == report.page(before)
        assert replace(found, figures=results.figures) == results

    def test_a_part_that_was_measured_again_takes_the_place_of_the_former(self) -> None:
        def results(works: list[str], date: str, **values: float) -> Results:
            figures = Figures()
            for name, value in values.items():
                figures.add(Subject(name, name, "ms"), HOLDFAST, Sample(value))
            absences = [Absence(work, BARE, date) for work in works]
            machine = [("date", date), ("system", "Abacus")]
            return Results(
                scale="full",
                machine=machine,
                works=works,
                contenders=[HOLDFAST],
                figures=figures,
                absences=absences,
                thrown=[],
            )

        whole = results(["drain", "web"], "monday", one=1.0, two=2.0)
        found = whole.joined(results(["web"], "tuesday", two=3.0)).joined(results(["web"], "friday", two=4.0))
        assert {figure.subject.key: figure.median for figure in found.figures} == {"one": 1.0, "two": 4.0}
        assert found.machine == [("date", "monday"), ("system", "Abacus"), ("web: measured again", "friday")]
        assert [(each.work, each.reason) for each in found.absences] == [("drain", "monday"), ("web", "friday")]

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (12_345.6, "12,346"),
            (99.94, "99.9"),
            (1.5, "1.50"),
            (90.0, "90"),
            (0.0, "0"),
            (UNKNOWN, ""),
            (-0.12, "-0.12"),
        ],
    )
    def test_a_number_has_as_many_digits_as_one_compares(self, value: float, text: str) -> None:
        assert report.number(value) == text

    def test_it_tells_how_long_each_work_took(self) -> None:
        assert lasted({"drain": 330.0, "idle": 0.2, "steady": 90.0}) == "7.0 minutes: drain 5.5, steady 1.5"
        assert lasted({}) == "0.0 minutes"


class TestContenders:
    def test_every_peer_is_pinned(self) -> None:
        assert all("==" in requirement for each in CONTENDERS for requirement in each.requires)
        assert len({(each.name, each.store) for each in CONTENDERS}) == len(CONTENDERS)

    def test_an_order_survives_its_way_to_another_process(self) -> None:
        order = Order(url="x", n=5, chunk=2, settings={"batch": 7})
        assert Order(**json.loads(order.text())) == order
        assert list(chunks(order)) == [[0, 1], [2, 3], [4]]

    def test_contenders_take_turns_and_a_failure_stays_its_own(self) -> None:
        good, bad = (Contender(name=name, module="x", store="postgres", about="") for name in ("good", "bad"))
        played: list[str] = []

        def run(contender: Contender) -> None:
            played.append(contender.name)
            if contender is bad:
                raise NotRun("it is not well") if len(played) < 3 else ValueError("nor now")

        with Session(replace(QUICK, rounds=4), None, Progress()) as session:
            session.rounds([good, bad], run)
            assert played == ["good", "bad", "bad", "good", "good", "good"]
            assert [absence.reason for absence in session.absences] == [
                "round 1: it is not well",
                "round 2: ValueError: nor now",
            ]

    def test_as_it_comes_is_with_its_own_defaults_and_without_uvloop(self) -> None:
        bare, celery = (next(each for each in CONTENDERS if each.name == name) for name in (BARE, "celery"))
        assert replace(bare, settings={"batch": 500}).told == "uvloop, batch 500"
        assert bare.as_it_comes.told == "asyncio, batch 100"
        assert (celery.told, celery.as_it_comes.told) == ("prefetch 64", "prefetch 4")

    def test_a_full_run_has_three_rounds_at_least(self) -> None:
        assert min(FULL.rounds, FULL.long_rounds) >= 3


class TestCells:
    """A run that others disturbed is thrown away and repeated, up to a bound."""

    CONTENDER = Contender(name="good", module="x", store="postgres", about="")

    def measured(self, *others: float, scale: Scale = QUICK) -> tuple[Session, list[float]]:
        """What is kept of runs in which others had these shares of the machine; the value of a run is its number."""
        shares = iter(enumerate(others, start=1))

        def run() -> None:
            number, share = next(shares)
            session.record(RATE, "good", Sample(number, others=share))

        with Session(scale, None, Progress()) as session:
            session.cell(self.CONTENDER, run)
        return session, [value for figure in session.figures for value in figure.values]

    def test_a_quiet_run_is_kept(self) -> None:
        session, kept = self.measured(DISTURBED)
        assert (session.thrown, kept) == ([], [1])

    def test_a_disturbed_run_is_repeated_and_only_the_repeat_kept(self) -> None:
        session, kept = self.measured(0.5, 0.01)
        assert ([each.share for each in session.thrown], kept) == ([0.5], [2])

    def test_after_so_many_the_least_disturbed_is_kept_and_known_as_such(self) -> None:
        session, kept = self.measured(0.5, 0.3, 0.4, scale=replace(QUICK, repeats=2))
        assert ([each.share for each in session.thrown], kept) == ([0.5, 0.3], [2])
        assert [figure.disturbed for figure in session.figures] == [1]

    def test_a_machine_that_is_never_quiet_does_not_make_the_benchmark_endless(self) -> None:
        session, kept = self.measured(0.5, scale=replace(QUICK, most_thrown=0))
        assert (session.thrown, kept) == ([], [1])

    def test_a_cell_within_a_turn_is_repeated_by_itself(self) -> None:
        shares = iter([0.5, 0.0])
        outer: list[int] = []

        def run(_contender: Contender) -> None:
            outer.append(1)
            session.record(RATE, "row by row", Sample(2.0, others=0.0))
            session.cells(self.CONTENDER, lambda: session.record(RATE, "good", Sample(1.0, others=next(shares))))

        with Session(replace(QUICK, rounds=1), None, Progress()) as session:
            session.rounds([self.CONTENDER], run)
        assert (len(outer), len(session.thrown)) == (1, 1)
        assert [(figure.contender, figure.values) for figure in session.figures] == [
            ("good", [1.0]),
            ("row by row", [2.0]),
        ]

    def test_what_was_measured_before_a_failure_is_kept(self) -> None:
        def run() -> None:
            session.record(RATE, "good", Sample(1.0))
            raise NotRun("it is not well")

        with Session(QUICK, None, Progress()) as session, pytest.raises(NotRun):
            session.cell(self.CONTENDER, run)
        assert [figure.values for figure in session.figures] == [[1.0]]

    def test_every_other_round_the_cells_of_a_turn_change_places(self) -> None:
        played: list[str] = []

        def run(contender: Contender) -> None:
            session.cells(contender, lambda: played.append("best"), lambda: played.append("default"))

        with Session(replace(QUICK, rounds=2), None, Progress()) as session:
            session.rounds([self.CONTENDER], run)
        assert played == ["best", "default", "default", "best"]

    def test_who_is_far_behind_takes_part_in_the_first_rounds_only(self) -> None:
        played: list[str] = []
        slow = replace(self.CONTENDER, name="slow", pace=0.05)
        with Session(replace(QUICK, rounds=3, slow_rounds=1), None, Progress()) as session:
            session.rounds([self.CONTENDER, slow], lambda contender: played.append(contender.name))
        assert played == ["good", "slow", "good", "good"]

    def test_some_take_part_in_one_work_only(self) -> None:
        with Session(QUICK, frozenset({BARE, BARE_JOIN}), Progress()) as session:
            session.work = "latency"
            assert [each.name for each in session.contenders("postgres")] == [BARE]
            session.work = "drain"
            assert [each.name for each in session.contenders("postgres")] == [BARE, BARE_JOIN]

    def test_settings_are_tried_once(self) -> None:
        with Session(QUICK, frozenset({BARE}), Progress()) as session:
            (bare,) = session.unsettled("postgres")
            session.settle(bare, {"batch": 7})
            assert session.unsettled("postgres") == []
            assert [each.settings for each in session.contenders("postgres")] == [{"batch": 7}]


class TestPlayers:
    def test_a_command_that_fails_tells_its_last_line(self) -> None:
        with pytest.raises(NotRun, match="ended with 3: the reason"):
            run_command([sys.executable, "-c", "import sys; print('first'); print('the reason'); sys.exit(3)"])

    def test_what_a_peer_prints_does_not_disturb(self) -> None:
        ready, done = (f"print(json.dumps(dict(event={event!r})), flush=True)" for event in ("ready", "done"))
        says = f"import json; print('hello'); print('[1]'); {ready}; input(); {done}"
        with Player("peer", [sys.executable, "-c", says], limit=math.inf) as player:
            player.expect("ready")
            player.go()
            player.expect("done")
            player.finish()

    def test_a_player_that_dies_tells_its_last_words(self) -> None:
        with (
            Player("peer", [sys.executable, "-c", "raise SystemExit('no such table')"], limit=math.inf) as player,
            pytest.raises(NotRun, match="peer ended with 1: no such table"),
        ):
            player.expect("ready")

    def test_a_player_over_its_limit_is_given_up(self) -> None:
        with (
            Player("peer", [sys.executable, "-c", "input()"], limit=0) as player,
            pytest.raises(NotRun, match="within its limit of 0 s"),
        ):
            player.expect("ready")
