"""HTML from templates: every text is escaped, and nothing is marked as safe but what a template itself wrote."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slipway_cli.objects.times import format_age
from slipway_console.access.refusal import ApiRefusal
from slipway_console.serving.sessions import Session
from slipway_console.views.chart import HEIGHT, WIDTH, format_number

FOLDER = Path(__file__).resolve().parents[1]
ASSETS = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


class Rendering:
    """The templates of the package, and its assets."""

    def __init__(
        self,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        has_provider: bool = False,
        has_batches: bool = False,
    ) -> None:
        """`has_provider`: viewers may sign in at an identity provider. `has_batches`: there is a page about jobs."""
        self.now, self._has_provider, self._has_batches = now, has_provider, has_batches
        self.assets = {name: (FOLDER / "static" / name).read_bytes() for name in ASSETS}
        digests = (hashlib.sha256(body).hexdigest() for body in self.assets.values())
        self.version = hashlib.sha256("".join(digests).encode()).hexdigest()[:12]
        self._templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters["ago"] = lambda moment: format_age(moment, self.now())
        self._templates.filters["utc"] = _utc
        self._templates.filters["number"] = format_number
        self._templates.globals.update(assets_version=self.version, chart_width=WIDTH, chart_height=HEIGHT)

    def page(self, template: str, session: Session, status: int = 200, **values: Any) -> web.Response:
        """A whole page. `stream`, if given, is the path that keeps it up to date."""
        news, session.news = session.news, ""
        return _html(self._render(template, session, news=news, **values), status)

    def section(self, template: str, session: Session, **values: Any) -> str:
        """A part of a page, whose template the page includes: the contents of the element that a stream replaces."""
        return self._render(template, session, **values)

    def refusal(self, refusal: ApiRefusal, session: Session | None) -> web.Response:
        """The page about something that failed."""
        text = self._render("refusal.html", session, sentence=refusal.sentence, detail=refusal.detail)
        return _html(text, refusal.status)

    def sign_in(self, sentence: str = "", status: int = 200) -> web.Response:
        """The form for a token, with what was wrong about the last one."""
        return _html(self._render("sign_in.html", None, sentence=sentence, has_provider=self._has_provider), status)

    def signed_in(self) -> web.Response:
        """The page that leads from a sign-in at a provider to the first page."""
        return _html(self._render("signed_in.html", None), 200)

    def asset(self, name: str) -> web.Response:
        """A file of ours. Its address changes with its contents.

        Raises:
            web.HTTPNotFound: there is none of this name.
        """
        if name not in self.assets:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "public, max-age=86400"}
        return web.Response(body=self.assets[name], content_type=ASSETS[name], charset="utf-8", headers=headers)

    def _render(self, template: str, session: Session | None, **values: Any) -> str:
        defaults: dict[str, Any] = {"news": "", "stream": "", "here": ""}
        return self._templates.get_template(template).render(**self._values(session), **(defaults | values))

    def _values(self, session: Session | None) -> dict[str, Any]:
        return {
            "user": session.viewer.user if session else "",
            "csrf": session.csrf if session else "",
            "has_batches": self._has_batches,
            "now": self.now(),
        }


def _utc(moment: datetime | None) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC") if moment else "unknown"


def _html(text: str, status: int) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8")
