"""Pictures of machines: everything is in them, and nothing covers anything else."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from holdfast.machines.drawing import lay_out, mermaid, svg
from tests.machines.pure import machine_of, seed

NAMES = ["job_worker", "parallelization_checker", "stale_worker_reaper"]
LOOP = """
start: {transitions: [{to: work}]}
work: {action: a, on_error: failed, transitions: [{condition: 'context.n < 3', to: work}, {to: check}]}
check: {transitions: [{condition: 'context.ok == "<&>"', to: done}, {to: start}]}
failed: {type: final}
done: {type: final}
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_has_every_state_and_boxes_do_not_overlap(name: str) -> None:
    machine = seed(name)
    root = ElementTree.fromstring(svg(machine, machine.initial))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(machine.states) <= set(texts)
    boxes = [rect.attrib for rect in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    areas = [tuple(float(box[side]) for side in ("x", "y", "width", "height")) for box in boxes]
    assert len(areas) == len(machine.states)
    for number, (x, y, width, height) in enumerate(areas):
        for other_x, other_y, other_width, other_height in areas[:number]:
            assert (
                x >= other_x + other_width
                or other_x >= x + width
                or y >= other_y + other_height
                or other_y >= y + height
            )
    page = [float(side) for side in root.attrib["viewBox"].split()]
    assert all(x + width <= page[2] and y + height <= page[3] for x, y, width, height in areas)


def test_ways_back_run_beside_the_boxes() -> None:
    machine = machine_of(LOOP)
    picture = svg(machine)
    ElementTree.fromstring(picture)  # conditions may hold any sign
    right = max(float(x) for x in re.findall(r"<rect x='([\d.]+)'", picture)) + 210
    lanes = [float(lane) for lane in re.findall(r" V[\d.]+ H([\d.]+) V", picture)]
    assert lanes
    assert min(lanes) > right


def test_rows_lead_down() -> None:
    layout = lay_out(seed("job_worker"))
    assert layout.rows[0] == ("start",)
    assert layout.row_of("claim_job") < layout.row_of("process_job") < layout.row_of("done")


def test_mermaid_names_each_way() -> None:
    text = mermaid(machine_of(LOOP), "check")
    assert text.startswith("stateDiagram-v2\n")
    assert "s1 --> s1: context.n ＜ 3" in text
    assert "class s2 current" in text
    assert text.count("--> [*]") == 2
