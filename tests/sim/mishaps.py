"""What befalls the processes and links of a simulated world, each deed by its name in the plan.

Rules
* What one deed begins it also ends, after a while; the world does not come to rest before that.
* Where there is nothing to befall, nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sessions.store import LeaseHeld, StoreError
from stages.liveness import Hung, Liveness
from tests.sim.clock import MS
from tests.sim.gateway import Gateway
from tests.sim.host import Host
from tests.sim.house import GATEWAYS, House
from tests.sim.network import DELAY_MS_MAX, Route
from tests.sim.plan import DIE_AT_CALL, REVOKE
from tests.sim.store import LEASE_TTL_MS, StoreLine

SILENCE_NS_MAX = 1_000_000_000  # a worker that is silent for so long is taken for dead
STOP_MS_MAX = 600  # less than that
ONE_LINK_CHANCE = 0.3
LAG_MS_MAX = 800
AWAY_MS = 400
RETIRE_MS_MAX = 2_000  # then it is ended, whatever it still has


class Mishaps:
    """`sessions` gives the present ones, by which a recovery would ask for leases."""

    def __init__(self, house: House, sessions: Callable[[], Sequence[str]]) -> None:
        self._house = house
        self._sessions = sessions
        self._mood = house.random_of("mishaps")
        self.under_way = 0
        self._deeds: dict[str, Callable[[float], None]] = {
            "kill a worker": lambda pick: house.kill_worker(self._stage(pick)),
            "stop a worker": lambda pick: self._stop_worker(pick, self._mood.uniform(50, STOP_MS_MAX)),
            "stop a worker until it is taken for dead": lambda pick: self._stop_worker(pick, None),
            "retire a worker": self._retire_worker,
            "replace a worker that lives on": self._replace_worker,
            "kill a gateway": lambda pick: house.kill_gateway(int(pick * GATEWAYS)),
            "stop a gateway": lambda pick: self._stop_gateway(pick, self._mood.uniform(50, 600)),
            "stop a gateway beyond its leases": lambda pick: self._stop_gateway(
                pick, LEASE_TTL_MS + self._mood.uniform(100, 1_500)
            ),
            "break a link to a gateway": lambda pick: self._break(self._gateway_route(pick)),
            "break a link between workers": lambda pick: self._data_route(pick).break_links(),
            "hold a link to a gateway": lambda pick: self._hold(self._gateway_route(pick)),
            "hold a link between workers": lambda pick: self._hold(self._data_route(pick)),
            "slow a link": self._slow_link,
            "cut a gateway off the store": self._cut_off,
            "slow the store": self._slow_store,
            "refuse at the store": self._refuse,
            "fill the store": self._fill,
            "fail over to a lagging replica": self._fail_over,
            "delete a session": self._delete,
            "lose requests to the store": self._lose_requests,
            "lose replies of the store": self._lose_replies,
            "step the wall clock": self._step_clock,
            "ask for a lease": self._ask_for_lease,
            REVOKE: self._revoke,
            DIE_AT_CALL: self._die_at_call,
        }

    def do(self, kind: str, pick: float) -> None:
        """Carry out a deed of the plan."""
        self._house.count(kind)
        self._deeds[kind](pick)

    def _later(self, delay_ms: float, call: Callable[..., None], *args: object) -> None:
        """The end of what was begun."""
        self.under_way += 1

        def end() -> None:
            self.under_way -= 1
            call(*args)

        self._house.clock.after(delay_ms, end)

    # ---- processes ---------------------------------------------------------------------------------

    def _stage(self, pick: float) -> str:
        return self._house.replicas[int(pick * len(self._house.replicas))]

    def _stop_worker(self, pick: float, pause_ms: float | None) -> None:
        """For a while, in which its keeper asks whether it lives; None: for ever."""
        host = self._house.hosts[self._stage(pick)]
        if host is not None:
            host.stop()
            self._watch_over(host, Liveness(SILENCE_NS_MAX))
            if pause_ms is not None:
                self._later(pause_ms, host.resume)

    def _watch_over(self, host: Host, liveness: Liveness) -> None:
        """As its keeper does, for as long as it stands still."""
        if host is not self._house.hosts[host.replica]:
            return
        told = liveness.tick()
        if isinstance(told, Hung):
            self._house.count("workers hung")
            self._house.keepers[host.replica].hang()
            self._house.kill_worker(host.replica)
            return
        host.ping(told, liveness.pong)
        if host.is_stopped:
            self._later(liveness.interval_ns / MS, self._watch_over, host, liveness)

    def _retire_worker(self, pick: float) -> None:
        name = self._stage(pick)
        host = self._house.hosts[name]
        if host is not None:
            self._house.retire_worker(name)
            self._later(RETIRE_MS_MAX, self._end_retired, name, host)

    def _end_retired(self, name: str, host: Host) -> None:
        if host is self._house.hosts[name]:
            self._house.kill_worker(name)

    def _replace_worker(self, pick: float) -> None:
        """The gateways reach it no more, it is taken for dead, and it goes on beside its successor."""
        name = self._stage(pick)
        host = self._house.hosts[name]
        if host is None:
            return
        for routes in self._house.gateway_routes:
            routes[name].break_links()
        self._house.let_go_of(name)
        self._later(self._mood.uniform(100, 3_000), host.die)

    def _stop_gateway(self, pick: float, pause_ms: float) -> None:
        gateway: Gateway | None = self._house.gateways[int(pick * GATEWAYS)]
        if gateway is not None:
            gateway.stop()
            self._later(pause_ms, gateway.resume)

    # ---- links -------------------------------------------------------------------------------------

    def _gateway_route(self, pick: float) -> Route:
        routes = [route for by_stage in self._house.gateway_routes for route in by_stage.values()]
        return routes[int(pick * len(routes))]

    def _data_route(self, pick: float) -> Route:
        routes = list(self._house.data_routes.values())
        return routes[int(pick * len(routes))]

    def _break(self, route: Route) -> None:
        """What connects the two; now and then, of several links one."""
        if self._mood.random() < ONE_LINK_CHANCE:
            self._house.count("break one link of several")
            route.break_one()
        else:
            route.break_links()

    def _hold(self, route: Route) -> None:
        """Both sides live and hear nothing of each other; perhaps the links do not survive it."""
        route.hold()
        pause_ms = self._mood.choice((100, 600, 3_000))
        if self._mood.random() < 0.5:
            self._later(pause_ms * self._mood.random(), route.break_links)
        self._later(pause_ms, route.release)

    def _slow_link(self, pick: float) -> None:
        route = self._mood.choice([self._gateway_route(pick), self._data_route(pick)])
        route.delay_ms_max = self._mood.choice((20.0, 120.0, 500.0))
        self._later(self._mood.uniform(200, 2_000), self._speed_up, route)

    @staticmethod
    def _speed_up(route: Route) -> None:
        route.delay_ms_max = DELAY_MS_MAX

    # ---- the store ---------------------------------------------------------------------------------

    def _line(self, pick: float) -> StoreLine:
        """One that has bad weather for a while."""
        line = self._house.lines[int(pick * GATEWAYS)]
        self._later(self._mood.choice((100, 500, 2_500)), line.clear_up)
        return line

    def _cut_off(self, pick: float) -> None:
        self._line(pick).weather.is_held = True

    def _slow_store(self, pick: float) -> None:
        self._line(pick).weather.delay_ms_max = self._mood.choice((30.0, 300.0, 900.0))

    def _refuse(self, pick: float) -> None:
        self._line(pick).weather.unavailable = self._mood.choice((0.3, 1.0))

    def _fill(self, pick: float) -> None:
        self._line(pick).weather.full = self._mood.choice((0.5, 1.0))

    def _fail_over(self, pick: float) -> None:
        """From now on the replica gets nothing any more; then the store is away, and then it is the replica."""
        replica = self._house.store.replica()
        lag_ms = pick * LAG_MS_MAX
        self._later(lag_ms, self._be_away)
        self._later(lag_ms + self._mood.choice((0, 300)), self._house.store.fail_over, replica)

    def _be_away(self) -> None:
        for line in self._house.lines:
            line.weather.is_held = True
            self._later(AWAY_MS, line.clear_up)

    def _revoke(self, pick: float) -> None:
        tenants = self._house.tenants
        tenant = sorted(tenants.callers)[int(pick * len(tenants.callers))]
        self._house.revoke(tenant)
        self._later(self._mood.choice((100, 1_000)), tenants.revoked.discard, tenant)

    def _die_at_call(self, pick: float) -> None:
        """The gateway that calls a tool next dies before it has written down that it will."""
        self._house.dies_at_call = True

    def _delete(self, pick: float) -> None:
        """As an operator would. Its owner hears of it, or finds out by itself."""
        sessions = self._sessions()
        session = sessions[int(pick * len(sessions))]
        if self._house.store.delete(session):
            self._house.count("sessions deleted")
            if self._mood.random() < 0.5:
                self._house.tell_of_deletion(session)

    def _lose_requests(self, pick: float) -> None:
        self._line(pick).weather.request_lost = self._mood.choice((0.3, 0.8))

    def _lose_replies(self, pick: float) -> None:
        self._line(pick).weather.reply_lost = self._mood.choice((0.3, 0.8))

    def _step_clock(self, pick: float) -> None:
        self._house.clock.step_wall((-3_600_000, -2_000, 2_000, 3_600_000)[int(pick * 4)])

    def _ask_for_lease(self, pick: float) -> None:
        """As an unattended recovery would: only what nobody holds is given."""
        sessions = self._sessions()
        try:
            self._house.store.acquire(sessions[int(pick * len(sessions))], "recovery", None)
        except LeaseHeld:
            self._house.count("leases held")
        except StoreError:
            self._house.count("leases of nothing")
        else:
            self._house.count("leases run out")
