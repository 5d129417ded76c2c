SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.accounts (
    account_id character varying NOT NULL COLLATE pg_catalog."C",
    kind character varying NOT NULL COLLATE pg_catalog."C",
    parent_id character varying COLLATE pg_catalog."C",
    name character varying NOT NULL COLLATE pg_catalog."C",
    limits jsonb,
    created_at timestamp with time zone NOT NULL,
    blocked_at timestamp with time zone,
    revision bigint NOT NULL
);
CREATE TABLE public.acts (
    act_id character varying NOT NULL COLLATE pg_catalog."C",
    at timestamp with time zone NOT NULL,
    actor character varying NOT NULL COLLATE pg_catalog."C",
    via character varying NOT NULL COLLATE pg_catalog."C",
    origin character varying COLLATE pg_catalog."C",
    action character varying NOT NULL COLLATE pg_catalog."C",
    target character varying COLLATE pg_catalog."C",
    details jsonb,
    result character varying NOT NULL COLLATE pg_catalog."C",
    words character varying COLLATE pg_catalog."C"
);
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.api_keys (
    key_id character varying NOT NULL COLLATE pg_catalog."C",
    alias character varying NOT NULL COLLATE pg_catalog."C",
    digest bytea NOT NULL,
    hint character varying NOT NULL COLLATE pg_catalog."C",
    models jsonb,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    revision bigint NOT NULL,
    project_id character varying DEFAULT 'proj_default'::character varying NOT NULL COLLATE pg_catalog."C",
    limits jsonb,
    on_exhausted character varying DEFAULT 'finish'::character varying NOT NULL COLLATE pg_catalog."C",
    when_down character varying COLLATE pg_catalog."C",
    tags jsonb,
    blocked_at timestamp with time zone,
    old_digest bytea,
    old_until timestamp with time zone
);
CREATE TABLE public.balances (
    key_id character varying NOT NULL COLLATE pg_catalog."C",
    charged_usd numeric(24,9) NOT NULL,
    cost_usd numeric(24,9) NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    total_tokens bigint NOT NULL,
    entries bigint NOT NULL
);
CREATE TABLE public.budget_alerts (
    alert_id character varying NOT NULL COLLATE pg_catalog."C",
    scope_id character varying NOT NULL COLLATE pg_catalog."C",
    threshold integer NOT NULL,
    since timestamp with time zone NOT NULL,
    spent_usd numeric(24,9) NOT NULL,
    budget_usd numeric(24,9) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    state character varying NOT NULL COLLATE pg_catalog."C",
    tries integer NOT NULL,
    next_at timestamp with time zone NOT NULL,
    last_error character varying COLLATE pg_catalog."C"
);
CREATE TABLE public.dead_letters (
    id character varying CONSTRAINT dead_letters_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    exchange_id character varying COLLATE pg_catalog."C",
    kind character varying COLLATE pg_catalog."C",
    seq integer,
    reason character varying CONSTRAINT dead_letters_reason_not_null1 NOT NULL COLLATE pg_catalog."C",
    payload text CONSTRAINT dead_letters_payload_not_null1 NOT NULL,
    first_seen timestamp with time zone CONSTRAINT dead_letters_first_seen_not_null1 NOT NULL,
    last_seen timestamp with time zone CONSTRAINT dead_letters_last_seen_not_null1 NOT NULL,
    times_seen bigint CONSTRAINT dead_letters_times_seen_not_null1 NOT NULL,
    node character varying COLLATE pg_catalog."C",
    journal_seq bigint,
    state character varying NOT NULL COLLATE pg_catalog."C",
    state_at timestamp with time zone NOT NULL
);
CREATE TABLE public.ledger_clock (
    id integer NOT NULL,
    settled_at timestamp with time zone NOT NULL
);
CREATE TABLE public.ledger_entries (
    entry_id character varying CONSTRAINT ledger_entries_entry_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    exchange_id character varying CONSTRAINT ledger_entries_exchange_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    kind character varying CONSTRAINT ledger_entries_kind_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_id character varying CONSTRAINT ledger_entries_key_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_alias character varying CONSTRAINT ledger_entries_key_alias_not_null1 NOT NULL COLLATE pg_catalog."C",
    provider character varying CONSTRAINT ledger_entries_provider_not_null1 NOT NULL COLLATE pg_catalog."C",
    model character varying CONSTRAINT ledger_entries_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    upstream_model character varying CONSTRAINT ledger_entries_upstream_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    endpoint character varying CONSTRAINT ledger_entries_endpoint_not_null1 NOT NULL COLLATE pg_catalog."C",
    streamed boolean CONSTRAINT ledger_entries_streamed_not_null1 NOT NULL,
    outcome character varying CONSTRAINT ledger_entries_outcome_not_null1 NOT NULL COLLATE pg_catalog."C",
    finish_reason character varying COLLATE pg_catalog."C",
    usage_source character varying CONSTRAINT ledger_entries_usage_source_not_null1 NOT NULL COLLATE pg_catalog."C",
    estimator character varying COLLATE pg_catalog."C",
    prompt_tokens bigint,
    cached_tokens bigint,
    completion_tokens bigint,
    reasoning_tokens bigint,
    total_tokens bigint,
    events bigint CONSTRAINT ledger_entries_events_not_null1 NOT NULL,
    bytes bigint CONSTRAINT ledger_entries_bytes_not_null1 NOT NULL,
    cost_usd numeric(24,9),
    charge_usd numeric(24,9),
    price_version character varying COLLATE pg_catalog."C",
    provider_response_id character varying COLLATE pg_catalog."C",
    started_at timestamp with time zone CONSTRAINT ledger_entries_started_at_not_null1 NOT NULL,
    first_token_ms double precision,
    duration_ms double precision CONSTRAINT ledger_entries_duration_ms_not_null1 NOT NULL,
    details jsonb CONSTRAINT ledger_entries_details_not_null1 NOT NULL,
    seq integer CONSTRAINT ledger_entries_seq_not_null1 NOT NULL,
    content_hash character varying CONSTRAINT ledger_entries_content_hash_not_null1 NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone CONSTRAINT ledger_entries_settled_at_not_null1 NOT NULL,
    node character varying COLLATE pg_catalog."C",
    journal_seq bigint
)
PARTITION BY RANGE (exchange_id);
CREATE TABLE public.ledger_entries_2026_10 (
    entry_id character varying CONSTRAINT ledger_entries_entry_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    exchange_id character varying CONSTRAINT ledger_entries_exchange_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    kind character varying CONSTRAINT ledger_entries_kind_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_id character varying CONSTRAINT ledger_entries_key_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_alias character varying CONSTRAINT ledger_entries_key_alias_not_null1 NOT NULL COLLATE pg_catalog."C",
    provider character varying CONSTRAINT ledger_entries_provider_not_null1 NOT NULL COLLATE pg_catalog."C",
    model character varying CONSTRAINT ledger_entries_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    upstream_model character varying CONSTRAINT ledger_entries_upstream_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    endpoint character varying CONSTRAINT ledger_entries_endpoint_not_null1 NOT NULL COLLATE pg_catalog."C",
    streamed boolean CONSTRAINT ledger_entries_streamed_not_null1 NOT NULL,
    outcome character varying CONSTRAINT ledger_entries_outcome_not_null1 NOT NULL COLLATE pg_catalog."C",
    finish_reason character varying COLLATE pg_catalog."C",
    usage_source character varying CONSTRAINT ledger_entries_usage_source_not_null1 NOT NULL COLLATE pg_catalog."C",
    estimator character varying COLLATE pg_catalog."C",
    prompt_tokens bigint,
    cached_tokens bigint,
    completion_tokens bigint,
    reasoning_tokens bigint,
    total_tokens bigint,
    events bigint CONSTRAINT ledger_entries_events_not_null1 NOT NULL,
    bytes bigint CONSTRAINT ledger_entries_bytes_not_null1 NOT NULL,
    cost_usd numeric(24,9),
    charge_usd numeric(24,9),
    price_version character varying COLLATE pg_catalog."C",
    provider_response_id character varying COLLATE pg_catalog."C",
    started_at timestamp with time zone CONSTRAINT ledger_entries_started_at_not_null1 NOT NULL,
    first_token_ms double precision,
    duration_ms double precision CONSTRAINT ledger_entries_duration_ms_not_null1 NOT NULL,
    details jsonb CONSTRAINT ledger_entries_details_not_null1 NOT NULL,
    seq integer CONSTRAINT ledger_entries_seq_not_null1 NOT NULL,
    content_hash character varying CONSTRAINT ledger_entries_content_hash_not_null1 NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone CONSTRAINT ledger_entries_settled_at_not_null1 NOT NULL,
    node character varying COLLATE pg_catalog."C",
    journal_seq bigint
);
CREATE TABLE public.ledger_entries_2026_11 (
    entry_id character varying CONSTRAINT ledger_entries_entry_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    exchange_id character varying CONSTRAINT ledger_entries_exchange_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    kind character varying CONSTRAINT ledger_entries_kind_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_id character varying CONSTRAINT ledger_entries_key_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_alias character varying CONSTRAINT ledger_entries_key_alias_not_null1 NOT NULL COLLATE pg_catalog."C",
    provider character varying CONSTRAINT ledger_entries_provider_not_null1 NOT NULL COLLATE pg_catalog."C",
    model character varying CONSTRAINT ledger_entries_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    upstream_model character varying CONSTRAINT ledger_entries_upstream_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    endpoint character varying CONSTRAINT ledger_entries_endpoint_not_null1 NOT NULL COLLATE pg_catalog."C",
    streamed boolean CONSTRAINT ledger_entries_streamed_not_null1 NOT NULL,
    outcome character varying CONSTRAINT ledger_entries_outcome_not_null1 NOT NULL COLLATE pg_catalog."C",
    finish_reason character varying COLLATE pg_catalog."C",
    usage_source character varying CONSTRAINT ledger_entries_usage_source_not_null1 NOT NULL COLLATE pg_catalog."C",
    estimator character varying COLLATE pg_catalog."C",
    prompt_tokens bigint,
    cached_tokens bigint,
    completion_tokens bigint,
    reasoning_tokens bigint,
    total_tokens bigint,
    events bigint CONSTRAINT ledger_entries_events_not_null1 NOT NULL,
    bytes bigint CONSTRAINT ledger_entries_bytes_not_null1 NOT NULL,
    cost_usd numeric(24,9),
    charge_usd numeric(24,9),
    price_version character varying COLLATE pg_catalog."C",
    provider_response_id character varying COLLATE pg_catalog."C",
    started_at timestamp with time zone CONSTRAINT ledger_entries_started_at_not_null1 NOT NULL,
    first_token_ms double precision,
    duration_ms double precision CONSTRAINT ledger_entries_duration_ms_not_null1 NOT NULL,
    details jsonb CONSTRAINT ledger_entries_details_not_null1 NOT NULL,
    seq integer CONSTRAINT ledger_entries_seq_not_null1 NOT NULL,
    content_hash character varying CONSTRAINT ledger_entries_content_hash_not_null1 NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone CONSTRAINT ledger_entries_settled_at_not_null1 NOT NULL,
    node character varying COLLATE pg_catalog."C",
    journal_seq bigint
);
CREATE TABLE public.ledger_entries_2026_12 (
    entry_id character varying CONSTRAINT ledger_entries_entry_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    exchange_id character varying CONSTRAINT ledger_entries_exchange_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    kind character varying CONSTRAINT ledger_entries_kind_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_id character varying CONSTRAINT ledger_entries_key_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_alias character varying CONSTRAINT ledger_entries_key_alias_not_null1 NOT NULL COLLATE pg_catalog."C",
    provider character varying CONSTRAINT ledger_entries_provider_not_null1 NOT NULL COLLATE pg_catalog."C",
    model character varying CONSTRAINT ledger_entries_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    upstream_model character varying CONSTRAINT ledger_entries_upstream_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    endpoint character varying CONSTRAINT ledger_entries_endpoint_not_null1 NOT NULL COLLATE pg_catalog."C",
    streamed boolean CONSTRAINT ledger_entries_streamed_not_null1 NOT NULL,
    outcome character varying CONSTRAINT ledger_entries_outcome_not_null1 NOT NULL COLLATE pg_catalog."C",
    finish_reason character varying COLLATE pg_catalog."C",
    usage_source character varying CONSTRAINT ledger_entries_usage_source_not_null1 NOT NULL COLLATE pg_catalog."C",
    estimator character varying COLLATE pg_catalog."C",
    prompt_tokens bigint,
    cached_tokens bigint,
    completion_tokens bigint,
    reasoning_tokens bigint,
    total_tokens bigint,
    events bigint CONSTRAINT ledger_entries_events_not_null1 NOT NULL,
    bytes bigint CONSTRAINT ledger_entries_bytes_not_null1 NOT NULL,
    cost_usd numeric(24,9),
    charge_usd numeric(24,9),
    price_version character varying COLLATE pg_catalog."C",
    provider_response_id character varying COLLATE pg_catalog."C",
    started_at timestamp with time zone CONSTRAINT ledger_entries_started_at_not_null1 NOT NULL,
    first_token_ms double precision,
    duration_ms double precision CONSTRAINT ledger_entries_duration_ms_not_null1 NOT NULL,
    details jsonb CONSTRAINT ledger_entries_details_not_null1 NOT NULL,
    seq integer CONSTRAINT ledger_entries_seq_not_null1 NOT NULL,
    content_hash character varying CONSTRAINT ledger_entries_content_hash_not_null1 NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone CONSTRAINT ledger_entries_settled_at_not_null1 NOT NULL,
    node character varying COLLATE pg_catalog."C",
    journal_seq bigint
);
CREATE TABLE public.ledger_entries_2027_01 (
    entry_id character varying CONSTRAINT ledger_entries_entry_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    exchange_id character varying CONSTRAINT ledger_entries_exchange_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    kind character varying CONSTRAINT ledger_entries_kind_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_id character varying CONSTRAINT ledger_entries_key_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_alias character varying CONSTRAINT ledger_entries_key_alias_not_null1 NOT NULL COLLATE pg_catalog."C",
    provider character varying CONSTRAINT ledger_entries_provider_not_null1 NOT NULL COLLATE pg_catalog."C",
    model character varying CONSTRAINT ledger_entries_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    upstream_model character varying CONSTRAINT ledger_entries_upstream_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    endpoint character varying CONSTRAINT ledger_entries_endpoint_not_null1 NOT NULL COLLATE pg_catalog."C",
    streamed boolean CONSTRAINT ledger_entries_streamed_not_null1 NOT NULL,
    outcome character varying CONSTRAINT ledger_entries_outcome_not_null1 NOT NULL COLLATE pg_catalog."C",
    finish_reason character varying COLLATE pg_catalog."C",
    usage_source character varying CONSTRAINT ledger_entries_usage_source_not_null1 NOT NULL COLLATE pg_catalog."C",
    estimator character varying COLLATE pg_catalog."C",
    prompt_tokens bigint,
    cached_tokens bigint,
    completion_tokens bigint,
    reasoning_tokens bigint,
    total_tokens bigint,
    events bigint CONSTRAINT ledger_entries_events_not_null1 NOT NULL,
    bytes bigint CONSTRAINT ledger_entries_bytes_not_null1 NOT NULL,
    cost_usd numeric(24,9),
    charge_usd numeric(24,9),
    price_version character varying COLLATE pg_catalog."C",
    provider_response_id character varying COLLATE pg_catalog."C",
    started_at timestamp with time zone CONSTRAINT ledger_entries_started_at_not_null1 NOT NULL,
    first_token_ms double precision,
    duration_ms double precision CONSTRAINT ledger_entries_duration_ms_not_null1 NOT NULL,
    details jsonb CONSTRAINT ledger_entries_details_not_null1 NOT NULL,
    seq integer CONSTRAINT ledger_entries_seq_not_null1 NOT NULL,
    content_hash character varying CONSTRAINT ledger_entries_content_hash_not_null1 NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone CONSTRAINT ledger_entries_settled_at_not_null1 NOT NULL,
    node character varying COLLATE pg_catalog."C",
    journal_seq bigint
);
CREATE TABLE public.ledger_entries_2027_02 (
    entry_id character varying CONSTRAINT ledger_entries_entry_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    exchange_id character varying CONSTRAINT ledger_entries_exchange_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    kind character varying CONSTRAINT ledger_entries_kind_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_id character varying CONSTRAINT ledger_entries_key_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_alias character varying CONSTRAINT ledger_entries_key_alias_not_null1 NOT NULL COLLATE pg_catalog."C",
    provider character varying CONSTRAINT ledger_entries_provider_not_null1 NOT NULL COLLATE pg_catalog."C",
    model character varying CONSTRAINT ledger_entries_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    upstream_model character varying CONSTRAINT ledger_entries_upstream_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    endpoint character varying CONSTRAINT ledger_entries_endpoint_not_null1 NOT NULL COLLATE pg_catalog."C",
    streamed boolean CONSTRAINT ledger_entries_streamed_not_null1 NOT NULL,
    outcome character varying CONSTRAINT ledger_entries_outcome_not_null1 NOT NULL COLLATE pg_catalog."C",
    finish_reason character varying COLLATE pg_catalog."C",
    usage_source character varying CONSTRAINT ledger_entries_usage_source_not_null1 NOT NULL COLLATE pg_catalog."C",
    estimator character varying COLLATE pg_catalog."C",
    prompt_tokens bigint,
    cached_tokens bigint,
    completion_tokens bigint,
    reasoning_tokens bigint,
    total_tokens bigint,
    events bigint CONSTRAINT ledger_entries_events_not_null1 NOT NULL,
    bytes bigint CONSTRAINT ledger_entries_bytes_not_null1 NOT NULL,
    cost_usd numeric(24,9),
    charge_usd numeric(24,9),
    price_version character varying COLLATE pg_catalog."C",
    provider_response_id character varying COLLATE pg_catalog."C",
    started_at timestamp with time zone CONSTRAINT ledger_entries_started_at_not_null1 NOT NULL,
    first_token_ms double precision,
    duration_ms double precision CONSTRAINT ledger_entries_duration_ms_not_null1 NOT NULL,
    details jsonb CONSTRAINT ledger_entries_details_not_null1 NOT NULL,
    seq integer CONSTRAINT ledger_entries_seq_not_null1 NOT NULL,
    content_hash character varying CONSTRAINT ledger_entries_content_hash_not_null1 NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone CONSTRAINT ledger_entries_settled_at_not_null1 NOT NULL,
    node character varying COLLATE pg_catalog."C",
    journal_seq bigint
);
CREATE TABLE public.ledger_entries_default (
    entry_id character varying CONSTRAINT ledger_entries_entry_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    exchange_id character varying CONSTRAINT ledger_entries_exchange_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    kind character varying CONSTRAINT ledger_entries_kind_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_id character varying CONSTRAINT ledger_entries_key_id_not_null1 NOT NULL COLLATE pg_catalog."C",
    key_alias character varying CONSTRAINT ledger_entries_key_alias_not_null1 NOT NULL COLLATE pg_catalog."C",
    provider character varying CONSTRAINT ledger_entries_provider_not_null1 NOT NULL COLLATE pg_catalog."C",
    model character varying CONSTRAINT ledger_entries_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    upstream_model character varying CONSTRAINT ledger_entries_upstream_model_not_null1 NOT NULL COLLATE pg_catalog."C",
    endpoint character varying CONSTRAINT ledger_entries_endpoint_not_null1 NOT NULL COLLATE pg_catalog."C",
    streamed boolean CONSTRAINT ledger_entries_streamed_not_null1 NOT NULL,
    outcome character varying CONSTRAINT ledger_entries_outcome_not_null1 NOT NULL COLLATE pg_catalog."C",
    finish_reason character varying COLLATE pg_catalog."C",
    usage_source character varying CONSTRAINT ledger_entries_usage_source_not_null1 NOT NULL COLLATE pg_catalog."C",
    estimator character varying COLLATE pg_catalog."C",
    prompt_tokens bigint,
    cached_tokens bigint,
    completion_tokens bigint,
    reasoning_tokens bigint,
    total_tokens bigint,
    events bigint CONSTRAINT ledger_entries_events_not_null1 NOT NULL,
    bytes bigint CONSTRAINT ledger_entries_bytes_not_null1 NOT NULL,
    cost_usd numeric(24,9),
    charge_usd numeric(24,9),
    price_version character varying COLLATE pg_catalog."C",
    provider_response_id character varying COLLATE pg_catalog."C",
    started_at timestamp with time zone CONSTRAINT ledger_entries_started_at_not_null1 NOT NULL,
    first_token_ms double precision,
    duration_ms double precision CONSTRAINT ledger_entries_duration_ms_not_null1 NOT NULL,
    details jsonb CONSTRAINT ledger_entries_details_not_null1 NOT NULL,
    seq integer CONSTRAINT ledger_entries_seq_not_null1 NOT NULL,
    content_hash character varying CONSTRAINT ledger_entries_content_hash_not_null1 NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone CONSTRAINT ledger_entries_settled_at_not_null1 NOT NULL,
    node character varying COLLATE pg_catalog."C",
    journal_seq bigint
);
CREATE TABLE public.sink_letters (
    sink character varying NOT NULL COLLATE pg_catalog."C",
    entry_id character varying NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone NOT NULL,
    why character varying NOT NULL COLLATE pg_catalog."C",
    first_seen timestamp with time zone NOT NULL,
    state character varying NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE public.sinks (
    name character varying NOT NULL COLLATE pg_catalog."C",
    settled_at timestamp with time zone NOT NULL,
    entry_id character varying NOT NULL COLLATE pg_catalog."C",
    sent bigint NOT NULL,
    last_sent_at timestamp with time zone,
    claimed_by character varying COLLATE pg_catalog."C",
    claimed_until timestamp with time zone NOT NULL,
    failures integer NOT NULL,
    failing_since timestamp with time zone,
    next_at timestamp with time zone NOT NULL,
    last_error character varying COLLATE pg_catalog."C"
);
CREATE TABLE public.usage_daily (
    day date NOT NULL,
    key_id character varying NOT NULL COLLATE pg_catalog."C",
    model character varying NOT NULL COLLATE pg_catalog."C",
    charged_usd numeric(24,9) NOT NULL,
    cost_usd numeric(24,9) NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    total_tokens bigint NOT NULL,
    entries bigint NOT NULL
);
ALTER TABLE ONLY public.ledger_entries ATTACH PARTITION public.ledger_entries_2026_10 FOR VALUES FROM ('01a0f4c2-c400') TO ('01a19467-e800');
ALTER TABLE ONLY public.ledger_entries ATTACH PARTITION public.ledger_entries_2026_11 FOR VALUES FROM ('01a19467-e800') TO ('01a22ee6-b000');
ALTER TABLE ONLY public.ledger_entries ATTACH PARTITION public.ledger_entries_2026_12 FOR VALUES FROM ('01a22ee6-b000') TO ('01a2ce8b-d400');
ALTER TABLE ONLY public.ledger_entries ATTACH PARTITION public.ledger_entries_2027_01 FOR VALUES FROM ('01a2ce8b-d400') TO ('01a36e30-f800');
ALTER TABLE ONLY public.ledger_entries ATTACH PARTITION public.ledger_entries_2027_02 FOR VALUES FROM ('01a36e30-f800') TO ('01a3fe63-0800');
ALTER TABLE ONLY public.ledger_entries ATTACH PARTITION public.ledger_entries_default DEFAULT;
INSERT INTO public.accounts VALUES ('org_default', 'organization', NULL, 'default', NULL, '2026-11-22 14:41:33.891272+00', NULL, 1);
INSERT INTO public.accounts VALUES ('proj_default', 'project', 'org_default', 'default', NULL, '2026-11-22 14:41:33.891272+00', NULL, 2);
INSERT INTO public.accounts VALUES ('org_golden', 'organization', NULL, 'Größe AG', '{"prepaid": true, "budget_usd": 7000000000000, "budget_window": "none"}', '2026-10-26 07:35:01.25+00', NULL, 3);
INSERT INTO public.accounts VALUES ('proj_golden', 'project', 'org_golden', 'ops', '{"parallel": 9, "budget_usd": 1, "budget_window": "4w"}', '2026-10-26 07:35:02.25+00', NULL, 4);
INSERT INTO public.accounts VALUES ('proj_blocked', 'project', 'org_default', 'old', NULL, '2026-10-26 07:35:03.25+00', '2026-10-26 07:35:04.25+00', 6);
INSERT INTO public.acts VALUES ('01793000115250000-62ad601887484a8f', '2026-10-26 07:35:15.25+00', 'admin', 'api', '192.0.2.1', 'key.create', 'key_golden', '{"alias": "häuser", "limits": {"rpm": 60}}', 'done', NULL);
INSERT INTO public.acts VALUES ('01793000116250000-000c3ae01ea1a0dd', '2026-10-26 07:35:16.25+00', 'root', 'cli', 'golden-host', 'key.block', 'key_nobody', NULL, 'refused', 'no such key');
INSERT INTO public.acts VALUES ('01793000117250000-0c132906b58c0943', '2026-10-26 07:35:17.25+00', 'root', 'cli', 'golden-host', 'key.revoke', 'key_nobody', NULL, 'failed', 'RuntimeError');
INSERT INTO public.acts VALUES ('01793000118250000-2de95ea2732df0e7', '2026-10-26 07:35:18.25+00', 'admin', 'api', '192.0.2.1', 'credit.add', 'org_golden', '{"usd": "50"}', 'begun', NULL);
INSERT INTO public.alembic_version VALUES ('0005');
INSERT INTO public.api_keys VALUES ('key_golden', 'häuser', '\xe7989db4d973557602802a87feda9fa80b8db8f81dd916859ac1c58da241a3bc', 'tw-…gggg', '["electron", "häuser/größe"]', '2026-10-26 07:35:05.25+00', NULL, NULL, 7, 'proj_golden', '{"rpm": 60, "tpm": 90000, "parallel": 3, "budget_usd": 5000000000, "budget_window": "calendar_month"}', 'cut', 'open', '["prod", "größe"]', NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_other', 'other', '\x0000000000000000000000000000000000000000000000000000000000000000', 'tw-…gggg', NULL, '2026-10-26 07:35:06.25+00', NULL, NULL, 8, 'proj_default', NULL, 'finish', 'closed', NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_rotated', 'rotated', '\x3232323232323232323232323232323232323232323232323232323232323232', 'tw-…2222', NULL, '2026-10-26 07:35:07.25+00', '2026-11-06 21:20:00.25+00', NULL, 10, 'proj_default', '{"prepaid": true}', 'finish', NULL, NULL, NULL, '\x3131313131313131313131313131313131313131313131313131313131313131', '2026-11-01 02:26:40.25+00');
INSERT INTO public.api_keys VALUES ('key_blocked', 'blocked', '\x626c6f636b656420202020202020202020202020202020202020202020202020', 'tw-…gggg', NULL, '2026-10-26 07:35:09.25+00', NULL, NULL, 12, 'proj_default', NULL, 'finish', NULL, NULL, '2026-10-26 07:35:10.25+00', NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_revoked', 'revoked', '\x7265766f6b656420202020202020202020202020202020202020202020202020', 'tw-…gggg', NULL, '2026-10-26 07:35:12.25+00', NULL, '2026-10-26 07:35:13.25+00', 14, 'proj_default', NULL, 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.balances VALUES ('key_other', 0.000028450, 0.000025550, 17, 0, 64, 0, 81, 1);
INSERT INTO public.balances VALUES ('org_golden', -48.999999999, 0.000000000, 0, 0, 0, 0, 0, 2);
INSERT INTO public.balances VALUES ('key_golden', 0.971937660, 0.175900220, 140734, 2800, 3150, 300, 143884, 24);
INSERT INTO public.budget_alerts VALUES ('alert_00000000000000000000000000000003', 'key_golden', 100, '2026-10-24 00:00:00+00', 4.000000000, 5.000000000, '2026-10-26 07:33:23.25+00', 'open', 1, '2026-10-26 07:34:30.25+00', NULL);
INSERT INTO public.budget_alerts VALUES ('alert_00000000000000000000000000000001', 'key_golden', 50, '2026-10-24 00:00:00+00', 4.000000000, 5.000000000, '2026-10-26 07:33:21.25+00', 'sent', 1, '2026-10-26 07:34:30.25+00', NULL);
INSERT INTO public.budget_alerts VALUES ('alert_00000000000000000000000000000002', 'key_golden', 80, '2026-10-24 00:00:00+00', 4.000000000, 5.000000000, '2026-10-26 07:33:22.25+00', 'given_up', 1, '2026-10-27 08:33:30.25+00', 'HTTP 500');
INSERT INTO public.dead_letters VALUES ('491b66e5767aeb1ceec6664a2848eb285d9114b42af1cf413ed08c1084b9f089', NULL, NULL, NULL, 'unreadable: UndecodableError', '{"version": 9}', '2026-11-22 14:41:34.483122+00', '2026-11-22 14:41:34.487862+00', 2, '00000000000000aa', 1099511627778, 'open', '2026-11-22 14:41:34.483122+00');
INSERT INTO public.dead_letters VALUES ('87f05e3b984aa24b2bd14121ddf7a67357f615cf3ed6ba0ba4cc29fd532f3b3f', '01a17720-cee2-7000-8000-000000000001', 'usage', 0, 'conflict: the ledger has another content under this id', '{"entry_id": "62dc4994-6e09-5966-9e03-5a638d45020c", "exchange_id": "01a17720-cee2-7000-8000-000000000001", "kind": "usage", "key_id": "key_golden", "key_alias": "h\u00e4user", "provider": "electron", "model": "electron", "upstream_model": "electron-2", "endpoint": "/v1/chat/completions", "streamed": true, "outcome": "served", "finish_reason": "stop", "usage_source": "reported", "estimator": null, "prompt_tokens": 1100, "cached_tokens": 300, "completion_tokens": 290, "reasoning_tokens": null, "total_tokens": 1390, "events": 32, "bytes": 8765, "cost_usd": 210300, "charge_usd": 243900, "price_version": "config-f155e55e", "provider_response_id": "chatcmpl-1", "started_at": 1793000001.25, "first_token_ms": 0.1, "duration_ms": 1234.567, "details": {"billed": "prompt+output", "price": {"version": "config-f155e55e", "input": "0.13", "cached_input": "0.07", "output": "0.41"}, "cost": {"version": "config-6127f701", "input": "0.11", "cached_input": "0.05", "output": "0.37"}}, "seq": 0}', '2026-11-22 14:41:34.494462+00', '2026-11-22 14:41:34.494462+00', 1, '00000000000000aa', 1099511627779, 'open', '2026-11-22 14:41:34.494462+00');
INSERT INTO public.dead_letters VALUES ('00e8427b57ed951a3f30cb16e04e4afe6fcdce64385b84c77bd9eb289c52edbd', '01a17720-cee2-7000-8000-000000000001', 'usage', 0, 'repeated under another receipt', '{"entry_id": "62dc4994-6e09-5966-9e03-5a638d45020c", "exchange_id": "01a17720-cee2-7000-8000-000000000001", "kind": "usage", "key_id": "key_golden", "key_alias": "h\u00e4user", "provider": "electron", "model": "electron", "upstream_model": "electron-2", "endpoint": "/v1/chat/completions", "streamed": true, "outcome": "served", "finish_reason": "stop", "usage_source": "reported", "estimator": null, "prompt_tokens": 1100, "cached_tokens": 300, "completion_tokens": 290, "reasoning_tokens": null, "total_tokens": 1390, "events": 31, "bytes": 8765, "cost_usd": 210300, "charge_usd": 243900, "price_version": "config-f155e55e", "provider_response_id": "chatcmpl-1", "started_at": 1793000001.25, "first_token_ms": 0.1, "duration_ms": 1234.567, "details": {"billed": "prompt+output", "price": {"version": "config-f155e55e", "input": "0.13", "cached_input": "0.07", "output": "0.41"}, "cost": {"version": "config-6127f701", "input": "0.11", "cached_input": "0.05", "output": "0.37"}}, "seq": 0}', '2026-11-22 14:41:34.513335+00', '2026-11-22 14:41:34.513335+00', 1, '00000000000000aa', 1099511627780, 'dropped', '2026-11-22 14:41:34.513335+00');
INSERT INTO public.dead_letters VALUES ('f2e0b529b6157fa202cbf4ec47f64148cfd7b6e47d68496dedd84b6c8ca95df9', NULL, NULL, NULL, 'unreadable: UndecodableError', '{"opened":{"exchange_id":"01a17721-9a02-7000-8000-000000000035","key_id":"key_golden","key_alias":"häuser","provider":"electron","model":"electron","upstream_model":"electron-2","endpoint":"/v1/chat/completions","streamed":true,"started_at":1793000053.25,"price":{"version":"config-f155e55e","tiers":[{"input":130000000,"cached_input":70000000,"output":410000000}]},"cost":{"version":"config-6127f701","tiers":[{"input":110000000,"cached_input":50000000,"output":370000000}]},"prompt_tokens_estimate":17,"completion_tokens_max":null,"slot":0,"bill":{},"held_usd":null,"attempts":[]},"outcome":"served","reading":{"usage":{"prompt_tokens":1100,"cached_tokens":300,"completion_tokens":290,"total_tokens":1390},"source":"reported"},"bills":"prompt+output","events":31,"bytes":8765,"duration_ms":1234.567,"first_token_ms":0.1,"finish_reason":"stop","provider_response_id":"chatcmpl-1","details":{},"kind":"usage","seq":0,"version":1}', '2026-11-22 14:41:34.515434+00', '2026-11-22 14:41:34.515434+00', 1, '00000000000000aa', 1099511627781, 'retried', '2026-11-22 14:41:34.531959+00');
INSERT INTO public.dead_letters VALUES ('17c63ac3c6d6059bb03eeb11bd546dd930ed0f28d5a58c2d5afacbe7da3c189e', NULL, NULL, NULL, 'delivered 5 times and never settled; dropped: nobody''s', '{}', '2026-11-22 14:41:34.527315+00', '2026-11-22 14:41:34.527315+00', 1, '00000000000000aa', 1099511627782, 'dropped', '2026-10-26 07:41:40.25+00');
INSERT INTO public.ledger_clock VALUES (1, '2026-11-22 14:41:34.531959+00');
INSERT INTO public.ledger_entries_2026_10 VALUES ('62dc4994-6e09-5966-9e03-5a638d45020c', '01a17720-cee2-7000-8000-000000000001', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 1100, 300, 290, NULL, 1390, 31, 8765, 0.000210300, 0.000243900, 'config-f155e55e', 'chatcmpl-1', '2026-10-26 07:33:21.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt+output"}', 0, '5f7b3b525a74e16c7d875bce526a4194664f64688a41b5c49123bfade295861b', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 1099511627789);
INSERT INTO public.ledger_entries_2026_10 VALUES ('9850c737-cd95-59c9-8645-97f9bc719fb8', '01a17720-d2ca-7000-8000-000000000002', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 1100, 300, 290, NULL, 1390, 31, 8765, NULL, NULL, NULL, 'chatcmpl-1', '2026-10-26 07:33:22.25+00', 0.1, 1234.567, '{"flags": ["a", "b"], "ratio": 0.1, "usage": {"x": null}, "billed": "prompt+output", "unpriced": true, "cost_unknown": true}', 0, '03fb5cced7f795b515f04c93c946e09a62dfa15acd1432fa2ad4855791d9f089', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255553);
INSERT INTO public.ledger_entries_2026_10 VALUES ('874f292f-f54f-5389-9f5e-8ebbf52f3737', '01a17720-d6b2-7000-8000-000000000003', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 2000, 400, 900, 300, 2900, 31, 8765, 0.160165000, 0.160165000, 'config-ec5e80f1', 'chatcmpl-1', '2026-10-26 07:33:23.25+00', 0.1, 1234.567, '{"cost": {"image": "0.04", "input": "2.5", "output": "20", "request": "0.000005", "version": "config-ec5e80f1", "searches": "10", "reasoning": "12", "audio_hour": "0.36", "characters": "15", "audio_input": "40", "cache_write": "3.125", "audio_output": "80", "cached_input": "0.25", "service_tier": "priority", "cache_write_1h": "5"}, "price": {"image": "0.04", "input": "2.5", "output": "20", "request": "0.000005", "version": "config-ec5e80f1", "searches": "10", "reasoning": "12", "audio_hour": "0.36", "characters": "15", "audio_input": "40", "cache_write": "3.125", "audio_output": "80", "cached_input": "0.25", "service_tier": "priority", "cache_write_1h": "5"}, "units": {"images": 2, "audio_ms": 61500, "searches": 3, "characters": 1234, "cache_write_tokens": 600, "audio_prompt_tokens": 50, "cache_write_1h_tokens": 200, "unbilled_prompt_tokens": 10, "audio_completion_tokens": 60, "unbilled_completion_tokens": 20}, "billed": "prompt+output", "service_tier": "priority"}', 0, '6f58389e92c4cf0e8ef38aa3a55ff2c0e0b33ff90ddf46001d24fb20e44beb57', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255554);
INSERT INTO public.ledger_entries_2026_10 VALUES ('331dfed2-b101-5502-bba6-77966627646c', '01a17720-da9a-7000-8000-000000000004', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 130000, 0, 10, NULL, 130010, 31, 8765, 0.014303700, 0.650105000, 'config-ec5e80f1', 'chatcmpl-1', '2026-10-26 07:33:24.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"image": "0.04", "input": "5", "output": "10", "request": "0.000005", "version": "config-ec5e80f1", "searches": "10", "reasoning": "12", "audio_hour": "0.36", "characters": "15", "audio_input": "40", "cache_write": "3.125", "audio_output": "80", "cached_input": "0.25", "cache_write_1h": "5", "above_prompt_tokens": 128000}, "billed": "prompt+output", "held_usd": "1.23456789"}', 0, '1ce28a6583da95db47ede85b42cdd93b51e0887b0b25c257b441c360839832ad', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255555);
INSERT INTO public.ledger_entries_2026_10 VALUES ('2d470599-6fb3-5c66-a379-1bc46e657736', '01a17720-de82-7000-8000-000000000005', 'usage', 'key_other', 'other', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'client_left', NULL, 'estimated', 'ridge-2', 17, NULL, 64, NULL, 81, 31, 8765, 0.000025550, 0.000028450, 'config-f155e55e', NULL, '2026-10-26 07:33:25.25+00', NULL, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt+output", "capped": true, "expected_error": 0.25, "hidden_reasoning": 12}', 0, 'dfc0731a4eaa017251988d28cdffe02f26cbb5f64d8839faf8e43aa56e967e58', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255556);
INSERT INTO public.ledger_entries_2026_10 VALUES ('997eaf5d-3703-522f-9aa4-f17ebb82357e', '01a17720-e26a-7000-8000-000000000006', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'upstream_failed', NULL, 'estimated', 'ridge-2', 17, NULL, 5, NULL, 22, 31, 8765, 0.000001870, 0.000002210, 'config-f155e55e', NULL, '2026-10-26 07:33:26.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt", "expected_error": 0.25}', 0, '74a455cda7d23b84a168f222eee3de4da4316033f5d3492f5df824a3a1af1338', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255557);
INSERT INTO public.ledger_entries_2026_10 VALUES ('662e63b1-9182-5ef9-8742-d91be135c703', '01a17720-e652-7000-8000-000000000007', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', false, 'upstream_stalled', NULL, 'estimated', 'ridge-2', 17, NULL, 5, NULL, 22, 0, 8765, 0.000001850, 0.000002050, 'config-f155e55e', NULL, '2026-10-26 07:33:27.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "output", "delivered_only": true, "expected_error": 0.25}', 0, '93e8d6e304366c884c5631e36e193ffc26db7e1c14174ea068aaeadbb7e9c0e5', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255558);
INSERT INTO public.ledger_entries_2026_10 VALUES ('bea8e4b5-5486-533a-b90b-45d6023237c3', '01a17720-ea3a-7000-8000-000000000008', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'budget_cut', 'budget', 'reported', NULL, 1100, 300, 290, NULL, 1390, 31, 8765, 0.000210300, 0.000243900, 'config-f155e55e', 'chatcmpl-1', '2026-10-26 07:33:28.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt+output"}', 0, '3b7c4bc630b6f6bc6f329752059786afbbb774ef4f9befeb8cba303e86d0c53f', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255559);
INSERT INTO public.ledger_entries_2026_10 VALUES ('e0ab4329-a506-57d5-9de4-3143f3269cd4', '01a17720-ee22-7000-8000-000000000009', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'shut_down', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, 0.000000000, 'config-f155e55e', NULL, '2026-10-26 07:33:29.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "nothing"}', 0, 'f17d253d28cb041cc633ecef9604188a43e2637d356505a8fe4259d69e4d4176', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255560);
INSERT INTO public.ledger_entries_2026_10 VALUES ('76ff60ed-19ef-5df0-8b42-0bff28d143f6', '01a17720-cee2-7000-8000-000000000001', 'adjustment', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 0, 0, 0, NULL, 0, 0, 0, 0.000000000, -0.000242900, 'config-f155e55e', 'chatcmpl-1', '2026-10-26 07:33:21.25+00', NULL, 0, '{"by": "operator", "why": "goodwill", "sets": {"charge_usd": "0.000001"}, "adjusts": "62dc4994-6e09-5966-9e03-5a638d45020c"}', 1, '24bc011cd411789da4aadeea557b9baef877c0a2ccc572ad90b640e9858634ad', '2026-11-22 14:41:34.396845+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('10a7648f-28a8-5a34-b0fe-d3f5dacec5f3', '01a17720-f20a-7000-8000-00000000000a', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 1100, 300, 290, NULL, 1390, 31, 8765, 0.000210300, 0.000243900, 'config-f155e55e', 'resp-10', '2026-10-26 07:33:30.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt+output", "attempts": [{"failed": "connection refused", "status": null, "provider": "tera", "started_at": 1793000009.75, "duration_ms": 12.5, "upstream_model": "tera-large-0901"}, {"failed": "HTTP 503", "status": 503, "provider": "giga", "started_at": 1793000009.85, "duration_ms": 250.0, "upstream_model": "giga-1"}, {"failed": "HTTP 429", "status": 429, "provider": "mega", "started_at": 1793000010.15, "duration_ms": 31.25, "upstream_model": "mega-1"}]}', 0, '32f22abdb4fe09b6b8e7a6d7a15d218d0b44fdfff6a42a2e39e02e98c48cc678', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255561);
INSERT INTO public.ledger_entries_2026_10 VALUES ('efa6d80f-29b1-53b2-a61d-90830306d1e2', '01a17720-f5f2-7000-8000-00000000000b', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/images/generations', true, 'served', 'stop', 'reported', NULL, NULL, NULL, NULL, NULL, NULL, 0, 8765, NULL, 0.160005000, 'config-ec5e80f1', 'chatcmpl-1', '2026-10-26 07:33:31.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"image": "0.04", "input": "2.5", "output": "10", "request": "0.000005", "version": "config-ec5e80f1", "searches": "10", "reasoning": "12", "audio_hour": "0.36", "characters": "15", "audio_input": "40", "cache_write": "3.125", "audio_output": "80", "cached_input": "0.25", "cache_write_1h": "5"}, "units": {"images": 4}, "billed": "prompt+output", "cost_unknown": true}', 0, 'f3660cc69503e8c166dd525de008553e8967b2c9b06d3d698facecd6fa20a952', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255562);
INSERT INTO public.ledger_entries_2026_10 VALUES ('79c37439-4a60-5fec-9a3f-f76bd996a85e', '01a17720-f9da-7000-8000-00000000000c', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'refused_upstream', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 31, 8765, 0.000000000, 0.000000000, 'config-f155e55e', NULL, '2026-10-26 07:33:32.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "nothing"}', 0, '82f6ffec2e65f582baa4fca8b55faa6a85b08f42fb739838b160268938285445', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255563);
INSERT INTO public.ledger_entries_2026_10 VALUES ('f001d48a-e44c-5b38-a053-f7daca30e721', '01a17720-fdc2-7000-8000-00000000000d', 'usage', 'key_golden', 'häuser', 'electron', 'häuser/größe', 'electron-2', '/v1/chat/completions', true, 'served', '?broken', 'reported', NULL, 1100, 300, 290, NULL, 1390, 31, 8765, 0.000210300, 0.000243900, 'config-f155e55e', 'chatcmpl-1', '2026-10-26 07:33:33.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt+output"}', 0, '74d53277c8141f07ba18c66d9fca5fa01f881bcabd591b391fdb19ef099056bb', '2026-11-22 14:41:34.33679+00', 'ce9042c49e58c5ac', 2199023255564);
INSERT INTO public.ledger_entries_2026_10 VALUES ('df4d1662-9918-5418-bcbd-d04402d5396d', '01a17720-f20a-7000-8000-00000000000a', 'attempt', 'key_golden', 'häuser', 'tera', 'electron', 'tera-large-0901', '/v1/chat/completions', true, 'upstream_failed', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, 0.000000000, NULL, NULL, '2026-10-26 07:33:29.75+00', NULL, 12.5, '{"failed": "connection refused"}', 1, '648e01ccf028d8874d9d6f2aa555a36f37941471a72b740d6f88d4c5b22a2374', '2026-11-22 14:41:34.33679+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('1494e7f0-31b4-5586-9f9a-ce87a5fbe9ca', '01a17720-f20a-7000-8000-00000000000a', 'attempt', 'key_golden', 'häuser', 'giga', 'electron', 'giga-1', '/v1/chat/completions', true, 'upstream_failed', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, 0.000000000, NULL, NULL, '2026-10-26 07:33:29.85+00', NULL, 250, '{"failed": "HTTP 503", "cost_unknown": true, "upstream_status": 503}', 2, '3387ead150382a3d9f07cd2d7cf193f59e6ddd0b866badee36c25168a5fae8f9', '2026-11-22 14:41:34.33679+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('6e88b7e7-3dfa-505b-b690-8ca2adafd3bd', '01a17720-f20a-7000-8000-00000000000a', 'attempt', 'key_golden', 'häuser', 'mega', 'electron', 'mega-1', '/v1/chat/completions', true, 'refused_upstream', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, 0.000000000, NULL, NULL, '2026-10-26 07:33:30.15+00', NULL, 31.25, '{"failed": "HTTP 429", "upstream_status": 429}', 3, '8ddd8a3c4095a6fc79fe5860537eae1481e0de4897ee18b4c48ca581bfaf925d', '2026-11-22 14:41:34.33679+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('c8b89c38-881f-56eb-87ce-c3537dbb2d28', '01a17721-8e4a-7000-8000-000000000032', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'crashed', NULL, 'estimated', 'ridge-2', 17, NULL, 10, NULL, 27, 10, 3000, 0.000005570, 0.000006310, 'config-f155e55e', NULL, '2026-10-26 07:34:10.25+00', NULL, 0, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "swept": true, "billed": "prompt+output", "expected_error": 0.25}', 0, '33207acd28cdd4070a9dd00b931b236db26605992ebd3366c35b19fd0a0b709a', '2026-11-22 14:41:34.35136+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('f9cf5271-fd3c-59fe-b378-595173504d43', '01a17721-8e4a-7000-8000-000000000032', 'adjustment', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'crashed', NULL, 'estimated', 'ridge-2', 0, NULL, 10, NULL, 10, 10, 3000, 0.000003700, 0.000004100, 'config-f155e55e', NULL, '2026-10-26 07:34:10.25+00', NULL, 0, '{"why": "swept again", "cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "swept": true, "billed": "prompt+output", "adjusts": "c8b89c38-881f-56eb-87ce-c3537dbb2d28", "restates": "b4b13191173e4d96106fc3bbdb7056bf82ac79a5bedaca80c5b4eebf702676ad", "expected_error": 0.25}', 1, 'fb9171e4d81b02e1fe53bd02c8468c37a4a0a0e0f077d109981fe13b0b03848e', '2026-11-22 14:41:34.353818+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('b25c11c5-9d46-5a2d-8cdb-87511b97aa7d', '01a17721-8e4a-7000-8000-000000000032', 'adjustment', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 1083, 300, 270, NULL, 1353, 11, 2765, 0.000201030, 0.000233490, 'config-f155e55e', 'chatcmpl-1', '2026-10-26 07:34:10.25+00', 0.1, 1234.567, '{"why": "late record", "cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt+output", "adjusts": "c8b89c38-881f-56eb-87ce-c3537dbb2d28", "restates": "049789c5a78b2fc9c2fb5126a2b33401f0ac304ebb78b0b037c86c7037a8f5d2"}', 2, '810356c472cd6715610b3712ceafb069d48549572ff4d258d5aedf8c2322f7fc', '2026-11-22 14:41:34.368524+00', '00000000000000aa', 1099511627777);
INSERT INTO public.ledger_entries_2026_10 VALUES ('b53f7e7a-f9e3-5906-93dc-bf88460b7f21', '01a17721-9232-7000-8000-000000000033', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'crashed', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, 0.000000000, 'config-f155e55e', NULL, '2026-10-26 07:34:11.25+00', NULL, 0, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "swept": true, "billed": "nothing", "progress": "missing"}', 0, '15c7cae6a943ab75eb30ab7ec770673e3d8c6c0d537107691362ebe93486b3c1', '2026-11-22 14:41:34.378907+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('bd4d9f99-eaa4-50e9-9d92-b9772c290421', '01a17720-ea3a-7000-8000-000000000008', 'adjustment', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'budget_cut', 'budget', 'corrected', NULL, -100, 0, -90, NULL, -190, 0, 0, -0.000044300, -0.000049900, 'config-f155e55e', 'chatcmpl-1', '2026-10-26 07:33:28.25+00', NULL, 0, '{"by": "operator", "why": "miscounted – sorry", "sets": {"prompt_tokens": 1000, "completion_tokens": 200}, "adjusts": "bea8e4b5-5486-533a-b90b-45d6023237c3"}', 1, '73cda42d356241979f3b42ec4187c72b390f8ef5c3ccec36e8d0368ff74d6727', '2026-11-22 14:41:34.404054+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('c23c011a-6efc-55d7-85e8-85373313ff6c', '01a17720-f20a-7000-8000-00000000000a', 'adjustment', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 0, 0, 0, NULL, 0, 0, 0, 0.000000000, 0.000243900, 'config-17910f85', 'resp-10', '2026-10-26 07:33:30.25+00', NULL, 0, '{"by": "rerate", "why": "rerated", "price": {"input": "0.26", "output": "0.82", "version": "config-17910f85", "cached_input": "0.14"}, "adjusts": "10a7648f-28a8-5a34-b0fe-d3f5dacec5f3"}', 1, '47e017b8dc1836cf4d4c30266e33bf5685cc07a44af8c7726f48d5a06934d4b6', '2026-11-22 14:41:34.449139+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('1d48b352-1e21-560a-948f-bdf2dcd5aa97', '01a17721-b55a-7000-8000-00000000003c', 'credit', 'org_golden', 'Größe AG', '', '', '', '', false, 'credit', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, -50.000000000, NULL, NULL, '2026-10-26 07:33:20.25+00', NULL, 0, '{"by": "operator", "why": "paid in"}', 0, 'e24c0b5ec83d65d96d6ba201519ad1716302dd86cfe73ce5b7799f38a3c74252', '2026-11-22 14:41:34.470286+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('81e5baf7-e8ad-564c-ae5c-ff892b52ebd9', '01a17721-b942-7000-8000-00000000003d', 'credit', 'org_golden', 'Größe AG', '', '', '', '', false, 'credit', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, 1.000000001, NULL, NULL, '2026-10-26 07:33:20.25+00', NULL, 0, '{"by": "operator", "why": "refund"}', 0, 'f7619610ecbfd4b08baabedffd6c054c66d5bfe651c3c511bcc088344ba34058', '2026-11-22 14:41:34.472359+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('9d77b1df-7ad3-5040-a848-e86941d1093d', '01a17721-9a02-7000-8000-000000000035', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 1100, 300, 290, NULL, 1390, 31, 8765, 0.000210300, 0.000243900, 'config-f155e55e', 'chatcmpl-1', '2026-10-26 07:34:13.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt+output"}', 0, 'be6fba3f337a190bccbe13388c93a17247474b38d39169242e8c4e6fc34d649f', '2026-11-22 14:41:34.531959+00', '00000000000000aa', 1099511627781);
INSERT INTO public.ledger_entries_default VALUES ('230e9cd7-8502-597f-baf6-4243b0408a39', '00000000-0000-0000-0000-000000000005', 'usage', 'key_golden', 'häuser', 'electron', 'electron', 'electron-2', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 1100, 300, 290, NULL, 1390, 31, 8765, 0.000210300, 0.000243900, 'config-f155e55e', 'chatcmpl-1', '2026-10-26 07:34:12.25+00', 0.1, 1234.567, '{"cost": {"input": "0.11", "output": "0.37", "version": "config-6127f701", "cached_input": "0.05"}, "price": {"input": "0.13", "output": "0.41", "version": "config-f155e55e", "cached_input": "0.07"}, "billed": "prompt+output"}', 0, '0a7d8d42dad3114f6dac4b1902a31cbafb48b3582e0c670e7d069d32847d6a6b', '2026-11-22 14:41:34.391542+00', NULL, NULL);
INSERT INTO public.sink_letters VALUES ('stripe', '1494e7f0-31b4-5586-9f9a-ce87a5fbe9ca', '2026-11-22 14:41:34.33679+00', 'HTTP 400', '2026-10-26 07:45:00.25+00', 'again');
INSERT INTO public.sink_letters VALUES ('stripe', '331dfed2-b101-5502-bba6-77966627646c', '2026-11-22 14:41:34.33679+00', 'HTTP 422', '2026-10-26 07:45:01.25+00', 'open');
INSERT INTO public.sinks VALUES ('stripe', '2026-11-22 14:41:34.33679+00', '62dc4994-6e09-5966-9e03-5a638d45020c', 4, '2026-10-26 07:45:01.25+00', 'golden-host:1', '2026-10-26 07:46:01.25+00', 0, NULL, '1970-01-01 00:00:00+00', NULL);
INSERT INTO public.sinks VALUES ('hook', '2026-10-26 07:33:20.25+00', '', 0, NULL, 'golden-host:2', '2026-10-26 07:34:21.25+00', 1, '2026-10-26 07:45:02.25+00', '2026-10-26 07:46:02.25+00', 'HTTP 503');
INSERT INTO public.usage_daily VALUES ('2026-10-26', 'key_golden', 'häuser/größe', 0.000243900, 0.000210300, 1100, 300, 290, 0, 1390, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-26', 'key_other', 'electron', 0.000028450, 0.000025550, 17, 0, 64, 0, 81, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-26', 'key_golden', 'electron', 0.971693760, 0.175689920, 139634, 2500, 2860, 300, 142494, 23);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.ledger_entries
    ADD CONSTRAINT pk_ledger_entries PRIMARY KEY (exchange_id, kind, seq);
ALTER TABLE ONLY public.ledger_entries_2026_10
    ADD CONSTRAINT ledger_entries_2026_10_pkey PRIMARY KEY (exchange_id, kind, seq);
ALTER TABLE ONLY public.ledger_entries_2026_11
    ADD CONSTRAINT ledger_entries_2026_11_pkey PRIMARY KEY (exchange_id, kind, seq);
ALTER TABLE ONLY public.ledger_entries_2026_12
    ADD CONSTRAINT ledger_entries_2026_12_pkey PRIMARY KEY (exchange_id, kind, seq);
ALTER TABLE ONLY public.ledger_entries_2027_01
    ADD CONSTRAINT ledger_entries_2027_01_pkey PRIMARY KEY (exchange_id, kind, seq);
ALTER TABLE ONLY public.ledger_entries_2027_02
    ADD CONSTRAINT ledger_entries_2027_02_pkey PRIMARY KEY (exchange_id, kind, seq);
ALTER TABLE ONLY public.ledger_entries_default
    ADD CONSTRAINT ledger_entries_default_pkey PRIMARY KEY (exchange_id, kind, seq);
ALTER TABLE ONLY public.accounts
    ADD CONSTRAINT pk_accounts PRIMARY KEY (account_id);
ALTER TABLE ONLY public.acts
    ADD CONSTRAINT pk_acts PRIMARY KEY (act_id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT pk_api_keys PRIMARY KEY (key_id);
ALTER TABLE ONLY public.balances
    ADD CONSTRAINT pk_balances PRIMARY KEY (key_id);
ALTER TABLE ONLY public.budget_alerts
    ADD CONSTRAINT pk_budget_alerts PRIMARY KEY (alert_id);
ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT pk_dead_letters PRIMARY KEY (id);
ALTER TABLE ONLY public.ledger_clock
    ADD CONSTRAINT pk_ledger_clock PRIMARY KEY (id);
ALTER TABLE ONLY public.sink_letters
    ADD CONSTRAINT pk_sink_letters PRIMARY KEY (sink, entry_id);
ALTER TABLE ONLY public.sinks
    ADD CONSTRAINT pk_sinks PRIMARY KEY (name);
ALTER TABLE ONLY public.usage_daily
    ADD CONSTRAINT pk_usage_daily PRIMARY KEY (key_id, day, model);
ALTER TABLE ONLY public.accounts
    ADD CONSTRAINT uq_accounts_revision UNIQUE (revision);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT uq_api_keys_digest UNIQUE (digest);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT uq_api_keys_revision UNIQUE (revision);
CREATE INDEX ix_accounts_parent_id ON public.accounts USING btree (parent_id);
CREATE INDEX ix_api_keys_alias ON public.api_keys USING btree (alias);
CREATE INDEX ix_api_keys_project_id ON public.api_keys USING btree (project_id);
CREATE INDEX ix_budget_alerts_state_next_at ON public.budget_alerts USING btree (state, next_at);
CREATE INDEX ix_dead_letters_exchange_id ON public.dead_letters USING btree (exchange_id);
CREATE INDEX ix_dead_letters_first_seen ON public.dead_letters USING btree (first_seen);
CREATE INDEX ix_dead_letters_node_journal_seq ON public.dead_letters USING btree (node, journal_seq);
CREATE INDEX ix_ledger_entries_key_id_started_at ON ONLY public.ledger_entries USING btree (key_id, started_at);
CREATE INDEX ix_ledger_entries_model_started_at ON ONLY public.ledger_entries USING btree (model, started_at);
CREATE INDEX ix_ledger_entries_node_journal_seq ON ONLY public.ledger_entries USING btree (node, journal_seq);
CREATE INDEX ix_ledger_entries_others ON ONLY public.ledger_entries USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ix_ledger_entries_settled_at_entry_id ON ONLY public.ledger_entries USING btree (settled_at, entry_id);
CREATE INDEX ix_sink_letters_sink_state ON public.sink_letters USING btree (sink, state);
CREATE INDEX ix_usage_daily_day ON public.usage_daily USING btree (day);
CREATE INDEX ledger_entries_2026_10_key_id_started_at_idx ON public.ledger_entries_2026_10 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2026_10_model_started_at_idx ON public.ledger_entries_2026_10 USING btree (model, started_at);
CREATE INDEX ledger_entries_2026_10_node_journal_seq_idx ON public.ledger_entries_2026_10 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2026_10_settled_at_entry_id_idx ON public.ledger_entries_2026_10 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2026_10_started_at_idx ON public.ledger_entries_2026_10 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2026_11_key_id_started_at_idx ON public.ledger_entries_2026_11 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2026_11_model_started_at_idx ON public.ledger_entries_2026_11 USING btree (model, started_at);
CREATE INDEX ledger_entries_2026_11_node_journal_seq_idx ON public.ledger_entries_2026_11 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2026_11_settled_at_entry_id_idx ON public.ledger_entries_2026_11 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2026_11_started_at_idx ON public.ledger_entries_2026_11 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2026_12_key_id_started_at_idx ON public.ledger_entries_2026_12 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2026_12_model_started_at_idx ON public.ledger_entries_2026_12 USING btree (model, started_at);
CREATE INDEX ledger_entries_2026_12_node_journal_seq_idx ON public.ledger_entries_2026_12 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2026_12_settled_at_entry_id_idx ON public.ledger_entries_2026_12 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2026_12_started_at_idx ON public.ledger_entries_2026_12 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2027_01_key_id_started_at_idx ON public.ledger_entries_2027_01 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2027_01_model_started_at_idx ON public.ledger_entries_2027_01 USING btree (model, started_at);
CREATE INDEX ledger_entries_2027_01_node_journal_seq_idx ON public.ledger_entries_2027_01 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2027_01_settled_at_entry_id_idx ON public.ledger_entries_2027_01 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2027_01_started_at_idx ON public.ledger_entries_2027_01 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2027_02_key_id_started_at_idx ON public.ledger_entries_2027_02 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2027_02_model_started_at_idx ON public.ledger_entries_2027_02 USING btree (model, started_at);
CREATE INDEX ledger_entries_2027_02_node_journal_seq_idx ON public.ledger_entries_2027_02 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2027_02_settled_at_entry_id_idx ON public.ledger_entries_2027_02 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2027_02_started_at_idx ON public.ledger_entries_2027_02 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_default_key_id_started_at_idx ON public.ledger_entries_default USING btree (key_id, started_at);
CREATE INDEX ledger_entries_default_model_started_at_idx ON public.ledger_entries_default USING btree (model, started_at);
CREATE INDEX ledger_entries_default_node_journal_seq_idx ON public.ledger_entries_default USING btree (node, journal_seq);
CREATE INDEX ledger_entries_default_settled_at_entry_id_idx ON public.ledger_entries_default USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_default_started_at_idx ON public.ledger_entries_default USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2026_10_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2026_10_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2026_10_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2026_10_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2026_10_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2026_10_started_at_idx;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2026_11_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2026_11_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2026_11_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2026_11_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2026_11_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2026_11_started_at_idx;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2026_12_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2026_12_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2026_12_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2026_12_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2026_12_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2026_12_started_at_idx;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2027_01_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2027_01_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2027_01_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2027_01_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2027_01_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2027_01_started_at_idx;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2027_02_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2027_02_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2027_02_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2027_02_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2027_02_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2027_02_started_at_idx;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_default_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_default_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_default_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_default_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_default_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_default_started_at_idx;
