"""Pictures of sample lives: the data map and the weights over time."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.signals.ledger import SampleState
from hf_glm_curriculum.storage import atomic_write_text

if TYPE_CHECKING:
    import pandas as pd

STATE_COLOURS = {
    SampleState.TRAINING.name: "#4c78a8",
    SampleState.OBSERVED.name: "#f2b134",
    SampleState.MASTERED.name: "#54a24b",
    SampleState.RESAMPLE.name: "#9d6cc3",
    SampleState.RELABEL.name: "#d64550",
}
"""One colour a state, the same in every picture."""


def data_map_png(samples: pd.DataFrame, path: Path, total: int | None = None) -> None:
    """Draw confidence against variability (data maps, Swayamdipta et al. 2020), coloured by state.

    Args:
        samples: ``SampleLedger.to_pandas()``, all of it or an even spread.
        path: PNG to write.
        total: samples there are, if not all are given; the title says so.

    Raises:
        StateError: if the file cannot be written.
    """
    figure = new_figure()
    axes = figure.subplots()
    size = 26 if len(samples) < 2000 else 6
    for name, colour in STATE_COLOURS.items():
        part = samples[samples["state"] == name]
        if len(part):
            axes.scatter(
                part["variability"],
                part["confidence"],
                s=size,
                c=colour,
                alpha=0.75,
                linewidths=0,
                label=f"{name.lower()} ({len(part)})",
            )
    axes.set_xlabel("variability: std of exp(−loss) over visits")
    axes.set_ylabel("confidence: mean of exp(−loss)")
    note = "" if total in (None, len(samples)) else f", {len(samples):,} of them shown"
    axes.set_title(f"Data map of {total or len(samples):,} samples{note}")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def weights_png(metrics: Sequence[Mapping[str, Any]], prefix: str, path: Path) -> None:
    """Draw weight quantiles and state shares over the steps of a run.

    Args:
        metrics: lines of ``metrics.jsonl``.
        prefix: of the callback's metrics, such as ``lifespan/``.
        path: PNG to write; nothing is drawn for a run that never logged.

    Raises:
        StateError: if the file cannot be written.
    """
    lines = [m for m in metrics if f"{prefix}weight_p50" in m]
    if not lines:
        return
    steps = [m["step"] for m in lines]
    figure = new_figure(7.0, 5.4)
    upper, lower = figure.subplots(2, 1, sharex=True)
    low, mid, high = ([_number(m, f"{prefix}weight_p{q}") for m in lines] for q in (10, 50, 90))
    upper.fill_between(steps, low, high, color="#4c78a8", alpha=0.2, label="10–90 %")
    upper.plot(steps, mid, color="#4c78a8", label="median")
    upper.set_ylabel("sample weight")
    upper.legend(frameon=False, fontsize=8)
    upper.grid(alpha=0.25)
    shares = {n: [_number(m, f"{prefix}state_{n.lower()}") for m in lines] for n in STATE_COLOURS}
    lower.stackplot(
        steps,
        list(shares.values()),
        colors=list(STATE_COLOURS.values()),
        labels=[name.lower() for name in shares],
        alpha=0.85,
    )
    lower.set_ylabel("samples")
    lower.set_xlabel("optimizer step")
    lower.legend(frameon=False, fontsize=8, loc="upper left", ncols=3)
    save_figure(figure, path)


def _number(entry: Mapping[str, Any], name: str) -> float:
    value = entry.get(name)
    return float("nan") if value is None else float(value)


def data_map_html(samples: pd.DataFrame, path: Path, total: int | None = None) -> None:
    """Write the data map as one self-contained page; hovering or tapping a point shows its text.

    Args:
        samples: ``SampleLedger.to_pandas()`` with ``prompt`` and ``response`` attached.
        path: HTML file to write.
        total: samples there are, if only the most suspicious are given; the page says so.

    Raises:
        StateError: if the file cannot be written.
    """
    points = [
        {
            "x": round(float(r["variability"]), 4),
            "y": round(float(r["confidence"]), 4),
            "c": STATE_COLOURS[r["state"]],
            "s": r["state"].lower(),
            "row": int(r["row"]),
            "p": (r["prompt"] or "")[:300],
            "r": (r["response"] or "")[:300],
            "z": None if r["suspicion"] != r["suspicion"] else round(float(r["suspicion"]), 2),
        }
        for r in samples.to_dict("records")
    ]
    # "<" never appears in the embedded JSON, so no sample text can close the script element.
    data = json.dumps(points, ensure_ascii=False).replace("<", "\\u003c")
    known = total or len(samples)
    note = "" if known == len(samples) else f", the {len(samples):,} most suspicious shown"
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{name.lower()}</span>'
        for name, colour in STATE_COLOURS.items()
    )
    title = html.escape(f"Data map of {known:,} samples{note}")
    page = _PAGE.replace("@TITLE@", title).replace("@LEGEND@", legend).replace("@DATA@", data)
    atomic_write_text(path, page)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>@TITLE@</title>
<style>
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:1rem auto;max-width:860px;padding:0 1rem}
h1{font-size:1.15rem}canvas{width:100%;height:auto;border:1px solid #8885;border-radius:8px}
.legend span{margin-right:1rem;white-space:nowrap}
.legend i{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.35em}
#detail{min-height:7rem;border-left:3px solid #8885;padding:.2rem .8rem;margin-top:.8rem;
white-space:pre-wrap;overflow-wrap:anywhere}
</style></head><body>
<h1>@TITLE@</h1>
<p class="legend">@LEGEND@</p>
<canvas width="1200" height="760" aria-label="confidence against variability"></canvas>
<p>Up: confidence (mean of exp(−loss)); right: variability (its standard deviation over visits).
Point at a sample to read it.</p>
<div id="detail"></div>
<script>
const points=@DATA@;
const canvas=document.querySelector("canvas"),pen=canvas.getContext("2d");
const width=canvas.width,height=canvas.height,margin=60;
const right=Math.max(0.05,...points.map(p=>p.x))*1.05;
const X=p=>margin+p.x/right*(width-2*margin),Y=p=>height-margin-p.y*(height-2*margin);
function draw(chosen){
 pen.clearRect(0,0,width,height);
 const ink=getComputedStyle(document.body).color;
 pen.strokeStyle=ink;pen.fillStyle=ink;pen.globalAlpha=.35;pen.font="20px sans-serif";
 pen.strokeRect(margin,margin,width-2*margin,height-2*margin);
 pen.globalAlpha=.8;
 for(let i=0;i<=4;i++){
  const x=margin+i/4*(width-2*margin),y=height-margin-i/4*(height-2*margin);
  pen.fillText((right*i/4).toFixed(2),x-18,height-margin+28);
  pen.fillText((i/4).toFixed(2),8,y+6);
 }
 for(const p of points){
  pen.globalAlpha=.75;pen.fillStyle=p.c;pen.beginPath();
  pen.arc(X(p),Y(p),p===chosen?12:7,0,7);pen.fill();
 }
}
function nearest(event){
 const box=canvas.getBoundingClientRect(),k=width/box.width;
 const x=(event.clientX-box.left)*k,y=(event.clientY-box.top)*k;
 let best=null,least=900;
 for(const p of points){const d=(X(p)-x)**2+(Y(p)-y)**2;if(d<least){least=d;best=p}}
 return best;
}
function show(event){
 const p=nearest(event);if(!p)return;draw(p);
 document.getElementById("detail").textContent=
  `row ${p.row} · ${p.s} · suspicion ${p.z??"unknown"} · confidence ${p.y} · variability ${p.x}`+
  `\\n\\nprompt: ${p.p||"(not in the data set)"}\\n\\nresponse: ${p.r}`;
}
canvas.addEventListener("mousemove",show);canvas.addEventListener("click",show);draw(null);
</script></body></html>
"""
