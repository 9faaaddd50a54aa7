"""The admin's command that lists the second machines a server has refused; FLARE's console shows it among its own."""

from __future__ import annotations

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
from nvflare.fuel.hci.reg import CommandModule, CommandModuleSpec, CommandSpec
from nvflare.fuel.hci.server.authz import PreAuthzReturnCode
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person

from fedretina.kit.second_machine import SecondMachines

COMMAND = "second_machines"
"""Name of the command, and of the list in its answer's meta."""


class SecondMachinesCommand(CommandModule):
    """Answers who came with a site's kit while the site was there, to whoever may see which sites are connected.

    Args:
        seen: Where the server notes them.
    """

    def __init__(self, seen: SecondMachines) -> None:
        self._seen = seen

    def get_spec(self) -> CommandModuleSpec:
        """FLARE's description of the command."""
        spec = CommandSpec(
            name=COMMAND,
            description="list machines that were refused because their site is connected from another one",
            usage=COMMAND,
            handler_func=self._list,
            authz_func=_may_look,
            visible=True,
        )
        return CommandModuleSpec(name="fedretina", cmd_specs=[spec])

    def _list(self, conn: Connection, args: list[str]) -> None:
        found = self._seen.current()
        words = "\n".join(one.words() for one in found) or "none in the last 24 hours"
        meta = make_meta(MetaStatusValue.OK, extra={COMMAND: [one.record() for one in found]})
        conn.append_string(words, meta=meta)


def _may_look(conn: Connection, args: list[str]) -> PreAuthzReturnCode:
    # FLARE knows rights for its own commands only, and denies all others: this one goes with that of `check_status`.
    properties = (ConnProps.USER_NAME, ConnProps.USER_ORG, ConnProps.USER_ROLE)
    user = Person(*(conn.get_prop(name, "") for name in properties))
    allowed, why = AuthorizationService.authorize(
        AuthzContext(right=AdminCommandNames.CHECK_STATUS, user=user, submitter=Person("", "", ""))
    )
    if allowed:
        return PreAuthzReturnCode.OK
    conn.append_error(f"not authorized: {why}", meta=make_meta(MetaStatusValue.NOT_AUTHORIZED, why))
    return PreAuthzReturnCode.ERROR
