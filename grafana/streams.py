"""*Streams now*: latency and outcomes of exchanges. From Prometheus."""

from __future__ import annotations

from grafana.panels import BAD, FAIR, GOOD, Board, Panel, Query, Variable

_OF = '{provider=~"$provider", model=~"$model"}'


def _quantiles(series: str, labels: str = "", *, by: str = "") -> list[Query]:
    grouped = f"le, {by}" if by else "le"
    return [
        Query(
            f"histogram_quantile({q / 100:g}, sum by ({grouped}) (rate({series}_bucket{labels}[$__rate_interval])))",
            f"p{q}" + (f" {{{{{by}}}}}" if by else ""),
        )
        for q in (50, 95, 99)
    ]


def _quantile_now(series: str, q: float, labels: str = "") -> list[Query]:
    return [Query(f"histogram_quantile({q}, sum by (le) (rate({series}_bucket{labels}[$__rate_interval])))")]


def _rates(series: str, by: str, labels: str = "") -> list[Query]:
    legend = " ".join(f"{{{{{one.strip()}}}}}" for one in by.split(","))
    return [Query(f"sum by ({by}) (rate({series}{labels}[$__rate_interval]))", legend)]


STREAMS = Board(
    uid="tokenweir-streams",
    title="Streams now",
    says="Latency for clients: time to first token, time between events, and the overhead of the proxy.",
    since="now-15m",
    refresh="5s",
    variables=[
        Variable("provider", "Provider", "label_values(tokenweir_exchanges_total, provider)"),
        Variable("model", "Model", 'label_values(tokenweir_exchanges_total{provider=~"$provider"}, model)'),
    ],
    panels=[
        Panel(
            title="In flight", kind="stat", width=4, height=4,
            says="Running requests of all proxies.",
            link="live",
            queries=[Query("sum(tokenweir_exchanges_in_flight)")],
        ),
        Panel(
            title="Requests per second", kind="stat", width=4, height=4, unit="reqps",
            says="Ended requests, with any outcome.",
            queries=[Query(f"sum(rate(tokenweir_exchanges_total{_OF}[$__rate_interval]))")],
        ),
        Panel(
            title="Success rate", kind="stat", width=4, height=4, unit="percentunit",
            says="Share of the ended requests whose client received the whole answer.",
            limits=[(None, BAD), (0.9, FAIR), (0.97, GOOD)],
            queries=[
                Query(
                    'sum(rate(tokenweir_exchanges_total{provider=~"$provider", model=~"$model", outcome="served"}'
                    f"[$__rate_interval])) / sum(rate(tokenweir_exchanges_total{_OF}[$__rate_interval]))"
                )
            ],
        ),
        Panel(
            title="First token, p95", kind="stat", width=4, height=4, unit="s",
            says="From the request's arrival to the first token sent to the client: 19 of 20 are faster.",
            queries=_quantile_now("tokenweir_time_to_first_token_seconds", 0.95, _OF),
        ),
        Panel(
            title="Between events, p95", kind="stat", width=4, height=4, unit="s",
            says="Between two pieces of a stream, as received from providers (all providers).",
            queries=_quantile_now("tokenweir_inter_event_seconds", 0.95),
        ),
        Panel(
            title="Proxy overhead, p99", kind="stat", width=4, height=4, unit="s",
            says="Time in the proxy before the request is sent to the provider.",
            limits=[(None, GOOD), (0.01, FAIR), (0.05, BAD)],
            queries=_quantile_now("tokenweir_relay_overhead_seconds", 0.99),
        ),
        Panel(
            title="Time to first token", unit="s", width=12,
            says="From the request's arrival to the first token sent to the client; streams only.",
            queries=_quantiles("tokenweir_time_to_first_token_seconds", _OF),
        ),
        Panel(
            title="Time to first token, p95 by model", unit="s", width=12,
            says="19 of 20 streams are faster.",
            queries=[
                Query(
                    "histogram_quantile(0.95, sum by (le, provider, model) (rate("
                    f"tokenweir_time_to_first_token_seconds_bucket{_OF}[$__rate_interval])))",
                    "{{provider}} {{model}}",
                )
            ],
        ),
        Panel(
            title="Time between events", unit="s",
            says="Between two pieces of a stream, as received from providers; the proxy delays none.",
            queries=_quantiles("tokenweir_inter_event_seconds"),
        ),
        Panel(
            title="Time between events, distribution", unit="s", kind="heatmap",
            says="Number of intervals by length: a second band is a provider that sends in bursts.",
            queries=[
                Query(
                    "sum by (le) (increase(tokenweir_inter_event_seconds_bucket[$__rate_interval]))",
                    "{{le}}", shape="heatmap",
                )
            ],
        ),
        Panel(
            title="Proxy overhead", unit="s",
            says="From the request's arrival to its dispatch: parsing, authorization, budgets, journal.",
            queries=_quantiles("tokenweir_relay_overhead_seconds"),
        ),
        Panel(
            title="In flight by proxy", stacked=True,
            says="Running requests.",
            link="live",
            queries=[Query("sum by (instance) (tokenweir_exchanges_in_flight)", "{{instance}}")],
        ),
        Panel(
            title="Requests by outcome", unit="reqps", stacked=True,
            says="Each request has exactly one outcome.",
            link="requests",
            queries=_rates("tokenweir_exchanges_total", "outcome", _OF),
        ),
        Panel(
            title="Client disconnects", unit="reqps", stacked=True,
            says="By policy: cancel closes the provider's stream, drain reads it to its end to get the reported usage.",
            link="requests?outcome=client_left",
            queries=_rates("tokenweir_client_disconnects_total", "policy", '{provider=~"$provider"}'),
        ),
        Panel(
            title="Tokens per second", unit="short", stacked=True,
            says="Output tokens by source of the count, when they are settled.",
            queries=_rates(
                "tokenweir_tokens_total", "model, source", '{provider=~"$provider", model=~"$model", type="output"}'
            ),
        ),
        Panel(
            title="Drain duration", unit="s",
            says="From the disconnect of the client to the end of the stream.",
            queries=_quantiles("tokenweir_provider_drain_seconds", '{provider=~"$provider"}'),
        ),
        Panel(
            title="Requests rejected by the proxy", unit="reqps", stacked=True,
            says="By status and code. Nothing was sent to a provider, nothing is billed.",
            queries=_rates("tokenweir_refusals_total", "status, code"),
        ),
        Panel(
            title="Event loop delay", unit="s",
            says="All streams of the process wait for so long. The log names the cause.",
            queries=_quantiles("tokenweir_event_loop_late_seconds"),
        ),
    ],
)  # fmt: skip
