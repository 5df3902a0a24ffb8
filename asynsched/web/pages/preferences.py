"""`/preferences`: the theme and the zone of this browser."""

from urllib.parse import quote, urlsplit

from starlette.responses import Response

from asynsched.queries.paging import BadRequest
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import PAGE, THEME_COOKIE, THEMES, ZONE_COOKIE, form_of, one, redirect, show, zones

KEPT_SECONDS = 365 * 24 * 3600


@PAGE.endpoint("GET", "/preferences")
async def preferences(call: Call) -> Response:
    """Show the choices."""
    return await show(call, "preferences.html", zones=sorted(zones()), themes=THEMES)


@PAGE.endpoint("POST", "/preferences", permission=Permission.VIEW)
async def set_preferences(call: Call) -> Response:
    """Keep the choices in cookies, and go back."""
    fields = await form_of(call)
    answer = redirect(call, "preferences")
    back = one(fields, "back")
    if back.startswith("/") and not back.startswith("//") and not urlsplit(back).netloc and "\\" not in back:
        answer.headers["Location"] = quote(back, safe="/?&=%~:+@,;.-_!*'()$")
    for name, cookie, known in (("theme", THEME_COOKIE, THEMES), ("zone", ZONE_COOKIE, zones())):
        if value := one(fields, name):
            if value not in known:
                raise BadRequest(f"There is no {name} {value[:60]!r}.")
            answer.set_cookie(cookie, quote(value), max_age=KEPT_SECONDS, samesite="lax")
    return answer
