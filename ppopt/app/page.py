"""The page of the app: the form, made from the settings, above the page that files have too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files

from ppopt.app.drawing import TITLE, Drawing
from ppopt.app.examples import examples
from ppopt.app.query import CONFIG, FIELDS, FIRST_STRATEGIES, MODEL, STRATEGIES
from ppopt.formats.models import model_names
from ppopt.problem.decisions import SEARCH
from ppopt.problem.setting import Heading, Setting, Shape
from ppopt.report.html import framed, page_parts
from ppopt.report.payload import embedded
from ppopt.report.script import script
from ppopt.strategies import registry

OPEN = (
    *("stages", "batches", "chunks", "placement", "mem_limit"),
    *("forward_times", "backward_times", "weight_times", "input_times", "p2p_time"),
    *("activation", "static"),
)
"""Fields that are always there; the others are folded."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; form-action 'none'; base-uri 'none'"
)
"""The page may ask its own server, and nobody else."""
_LABELS = {"stages": "devices", "batches": "microbatches"}
"""Where the name of a setting in files is not what it is called."""


def app_page(drawing: Drawing) -> str:
    """The page with the schedules of a drawing, and the form that its script fills in."""
    parts = page_parts(list(drawing.schedules.values()), title=TITLE)
    opening = f'{_form()}\n<div id="opening">{parts.above}</div>'
    style = files("ppopt.app").joinpath("app.css").read_text(encoding="utf-8")
    return framed(parts, opening=opening, script=script(app=True), style=style, policy=POLICY)


def _form() -> str:
    rest = [setting for name, setting in FIELDS.items() if name not in OPEN]
    strategies = ",".join(FIRST_STRATEGIES)
    return f"""<form id="app" autocomplete="off" spellcheck="false" data-strategies="{strategies}">
<div class="group"><label for="example">start from</label>
<select id="example"><option value="">an example</option>{_options(examples())}</select>
<button type="button" id="copy" title="copy the command that compares the same">
copy as command</button>
<label for="of">download</label><select id="of" title="the schedule of a .json or .csv"></select>
{_downloads()}</div>
<div class="fields">{"".join(map(_field, (FIELDS[name] for name in OPEN)))}</div>
<details id="further"><summary>further settings</summary>{"".join(_groups(rest))}</details>
<details id="layers-part"><summary>a model in layers, or a whole config</summary>
{_model()}
<label for="field-{CONFIG}">layers, or what a config file holds, as YAML; fields override it</label>
<textarea id="field-{CONFIG}" name="{CONFIG}" rows="10" aria-describedby="error-{CONFIG}"
placeholder="- {{name: block, count: 8, forward: 1, backward: 2}}"></textarea>
{_error(CONFIG)}</details>
<fieldset id="field-{STRATEGIES}" aria-describedby="error-{STRATEGIES}">
<legend>strategies</legend>{"".join(_cards())}</fieldset>
{_error(STRATEGIES)}
<div class="group"><button type="button" id="find">find the best schedule</button>
<button type="button" id="stop" hidden>stop</button><output id="progress" for="find"></output></div>
<p id="app-message" class="bad" role="alert"></p>
<p id="stale" class="bad" role="status" hidden>The charts show earlier settings.
Fix the fields marked red.</p>
<script type="application/json" id="examples">{embedded(examples())}</script>
</form>"""


def _groups(settings: Iterable[Setting]) -> Iterator[str]:
    """The fields in groups, as in the help of a command."""
    settings = list(settings)
    for heading in Heading:
        own = [setting for setting in settings if setting.heading is heading]
        if own:
            fields = "".join(map(_field, own))
            yield f'<h3>{escape(heading)}</h3><div class="fields">{fields}</div>'


def _field(setting: Setting) -> str:
    """The field of a setting, with its meaning and a place for what is wrong with it."""
    name = setting.name
    text = _LABELS.get(name, name.replace("_", " "))
    about = f'id="field-{name}" name="{name}" aria-describedby="error-{name}"'
    if setting.choices and setting.shape is not Shape.PLACEMENT:
        choices = [str(choice) for choice in setting.choices]
        control = f'<select {about}><option value=""></option>{_options(choices)}</select>'
    else:
        hint = "" if setting.default is None else f' placeholder="{escape(str(setting.default))}"'
        known = [str(choice) for choice in setting.choices if choice != SEARCH]
        names = f' list="names-{name}"><datalist id="names-{name}">{_options(known)}</datalist'
        control = f"<input {about}{hint}{names if known else ''}>"
    title = escape(setting.described)
    label = f'<label for="field-{name}" title="{title}">{escape(text)}</label>'
    return f"<div>{label}{control}{_error(name)}</div>"


def _model() -> str:
    choices = f'<option value=""></option>{_options(model_names())}'
    about = f'id="field-{MODEL}" name="{MODEL}" aria-describedby="error-{MODEL}"'
    return (
        f'<label for="field-{MODEL}">model</label><select {about}>{choices}</select>{_error(MODEL)}'
    )


def _cards() -> Iterator[str]:
    """A card of every baseline."""
    for name, strategy in registry().items():
        text = escape(strategy.summary)
        yield (
            f'<label class="card" title="{text}"><input type="checkbox" value="{name}">'
            f'<b>{name}</b> <span class="quiet">{text}</span><span class="reason"></span></label>'
        )


def _downloads() -> str:
    forms = {"html": "page", "json": "JSON", "csv": "CSV"}
    return "".join(f'<a data-file="{form}" href="">{text}</a>' for form, text in forms.items())


def _options(names: Iterable[str]) -> str:
    return "".join(f"<option>{escape(name)}</option>" for name in names)


def _error(name: str) -> str:
    return f'<span class="error" id="error-{name}"></span>'
