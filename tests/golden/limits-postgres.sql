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
CREATE TABLE public.account_clock (
    id integer NOT NULL,
    settled_at timestamp with time zone NOT NULL
);
CREATE TABLE public.account_daily (
    account_id character varying NOT NULL COLLATE pg_catalog."C",
    day date NOT NULL,
    charged_nusd bigint NOT NULL
);
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
    on_store_outage character varying COLLATE pg_catalog."C",
    tags jsonb,
    blocked_at timestamp with time zone,
    old_digest bytea,
    old_until timestamp with time zone
);
CREATE TABLE public.archived_receipts (
    node character varying NOT NULL COLLATE pg_catalog."C",
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL
);
CREATE TABLE public.archived_sums (
    month character varying NOT NULL COLLATE pg_catalog."C",
    key_id character varying NOT NULL COLLATE pg_catalog."C",
    day date NOT NULL,
    model character varying NOT NULL COLLATE pg_catalog."C",
    kind character varying NOT NULL COLLATE pg_catalog."C",
    charged_usd numeric(24,9) NOT NULL,
    cost_usd numeric(24,9) NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    total_tokens bigint NOT NULL,
    entries bigint NOT NULL
);
CREATE TABLE public.archives (
    month character varying NOT NULL COLLATE pg_catalog."C",
    statements_until character varying NOT NULL COLLATE pg_catalog."C",
    entries bigint NOT NULL,
    file character varying NOT NULL COLLATE pg_catalog."C",
    sha256 character varying NOT NULL COLLATE pg_catalog."C",
    archived_at timestamp with time zone NOT NULL,
    archived_by character varying NOT NULL COLLATE pg_catalog."C",
    removed_at timestamp with time zone
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
CREATE TABLE public.periods (
    month character varying NOT NULL COLLATE pg_catalog."C",
    closed_at timestamp with time zone NOT NULL,
    closed_by character varying NOT NULL COLLATE pg_catalog."C",
    left_behind jsonb,
    issued_at timestamp with time zone,
    entries bigint,
    digest character varying COLLATE pg_catalog."C"
);
CREATE TABLE public.price_lists (
    name character varying NOT NULL COLLATE pg_catalog."C",
    version character varying COLLATE pg_catalog."C",
    content bytea,
    accepted_at timestamp with time zone,
    checked_at timestamp with time zone,
    next_at timestamp with time zone NOT NULL,
    refused jsonb NOT NULL,
    error character varying COLLATE pg_catalog."C"
);
CREATE TABLE public.scope_months (
    scope_id character varying NOT NULL COLLATE pg_catalog."C",
    month character varying NOT NULL COLLATE pg_catalog."C",
    name character varying NOT NULL COLLATE pg_catalog."C",
    entries bigint NOT NULL,
    digest character varying NOT NULL COLLATE pg_catalog."C",
    charged_usd numeric(24,9) NOT NULL,
    credited_usd numeric(24,9) NOT NULL,
    content jsonb NOT NULL
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
CREATE TABLE public.stored_batches (
    exchange_id character varying NOT NULL COLLATE pg_catalog."C",
    batch_id character varying COLLATE pg_catalog."C",
    api character varying NOT NULL COLLATE pg_catalog."C",
    provider character varying NOT NULL COLLATE pg_catalog."C",
    credential character varying COLLATE pg_catalog."C",
    key_id character varying NOT NULL COLLATE pg_catalog."C",
    key_alias character varying NOT NULL COLLATE pg_catalog."C",
    project_id character varying NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone NOT NULL,
    state character varying NOT NULL COLLATE pg_catalog."C",
    endpoint character varying NOT NULL COLLATE pg_catalog."C",
    input_file character varying COLLATE pg_catalog."C",
    lines bigint NOT NULL,
    held_usd numeric(24,9),
    names character varying NOT NULL COLLATE pg_catalog."C",
    files jsonb NOT NULL,
    terms jsonb NOT NULL,
    next_at timestamp with time zone NOT NULL,
    claimed_by character varying COLLATE pg_catalog."C"
);
CREATE TABLE public.stored_files (
    file_id character varying NOT NULL COLLATE pg_catalog."C",
    api character varying NOT NULL COLLATE pg_catalog."C",
    provider character varying NOT NULL COLLATE pg_catalog."C",
    credential character varying COLLATE pg_catalog."C",
    key_id character varying NOT NULL COLLATE pg_catalog."C",
    project_id character varying NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone NOT NULL,
    purpose character varying NOT NULL COLLATE pg_catalog."C",
    input jsonb,
    made_by character varying COLLATE pg_catalog."C"
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
INSERT INTO public.account_clock VALUES (1, '2026-11-29 04:22:49.450776+00');
INSERT INTO public.account_daily VALUES ('org_acme', '2026-10-10', 1950000750);
INSERT INTO public.account_daily VALUES ('org_acme', '2026-10-30', 1950000708);
INSERT INTO public.account_daily VALUES ('org_acme', '2026-11-03', 1830000657);
INSERT INTO public.account_daily VALUES ('org_acme', '2026-11-05', 3900001206);
INSERT INTO public.account_daily VALUES ('proj_chat', '2026-10-10', 1950000750);
INSERT INTO public.account_daily VALUES ('proj_chat', '2026-10-30', 1950000708);
INSERT INTO public.account_daily VALUES ('proj_chat', '2026-11-03', 1830000657);
INSERT INTO public.account_daily VALUES ('proj_chat', '2026-11-05', 3900001206);
INSERT INTO public.accounts VALUES ('org_default', 'organization', NULL, 'default', NULL, '2026-11-29 04:22:48.970148+00', NULL, 1);
INSERT INTO public.accounts VALUES ('proj_default', 'project', 'org_default', 'default', NULL, '2026-11-29 04:22:48.970148+00', NULL, 2);
INSERT INTO public.accounts VALUES ('org_acme', 'organization', NULL, 'Acme', '{"budget_usd": 900000000001, "budget_window": "calendar_month"}', '2026-09-26 17:33:20.5+00', NULL, 3);
INSERT INTO public.accounts VALUES ('org_paid', 'organization', NULL, 'Paid ahead', '{"prepaid": true}', '2026-09-26 17:33:20.5+00', NULL, 4);
INSERT INTO public.accounts VALUES ('proj_chat', 'project', 'org_acme', 'chat', '{"rpm": 600, "budget_usd": 70000000003, "budget_window": "7d"}', '2026-09-26 17:33:20.5+00', NULL, 5);
INSERT INTO public.accounts VALUES ('proj_free', 'project', 'org_paid', 'free', '{"tpm": 90000}', '2026-09-26 17:33:20.5+00', NULL, 6);
INSERT INTO public.alembic_version VALUES ('0012_from_0006');
INSERT INTO public.api_keys VALUES ('key_none', 'none', '\x0000000000000000000000000000000000000000000000000000000000000000', 'tw-…0000', NULL, '2026-09-26 17:33:20.5+00', NULL, NULL, 7, 'proj_chat', '{"budget_usd": 20000000014, "budget_window": "none"}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_12h', '12h', '\x0101010101010101010101010101010101010101010101010101010101010101', 'tw-…0001', NULL, '2026-09-26 18:33:21.75+00', NULL, NULL, 8, 'proj_chat', '{"budget_usd": 30000000021, "budget_window": "12h"}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_24h', '24h', '\x0202020202020202020202020202020202020202020202020202020202020202', 'tw-…0002', NULL, '2026-09-26 19:33:23+00', NULL, NULL, 9, 'proj_chat', '{"budget_usd": 40000000028, "budget_window": "24h"}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_7d', '7d', '\x0303030303030303030303030303030303030303030303030303030303030303', 'tw-…0003', NULL, '2026-09-26 20:33:24.25+00', NULL, NULL, 10, 'proj_chat', '{"budget_usd": 50000000035, "budget_window": "7d"}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_4w', '4w', '\x0404040404040404040404040404040404040404040404040404040404040404', 'tw-…0004', NULL, '2026-09-26 21:33:25.5+00', NULL, NULL, 11, 'proj_chat', '{"budget_usd": 60000000042, "budget_window": "4w"}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_30d', '30d', '\x0505050505050505050505050505050505050505050505050505050505050505', 'tw-…0005', NULL, '2026-09-26 22:33:26.75+00', NULL, NULL, 12, 'proj_chat', '{"budget_usd": 70000000049}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_calendarmonth', 'calendarmonth', '\x0606060606060606060606060606060606060606060606060606060606060606', 'tw-…0006', NULL, '2026-09-26 23:33:28+00', NULL, NULL, 13, 'proj_chat', '{"budget_usd": 80000000056, "budget_window": "calendar_month"}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_prepaid', 'prepaid', '\x0707070707070707070707070707070707070707070707070707070707070707', 'tw-…0007', NULL, '2026-09-27 00:33:29.25+00', NULL, NULL, 14, 'proj_default', '{"prepaid": true}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_both', 'both', '\x0808080808080808080808080808080808080808080808080808080808080808', 'tw-…0008', NULL, '2026-09-27 01:33:30.5+00', NULL, NULL, 15, 'proj_free', '{"prepaid": true, "parallel": 3, "budget_usd": 5000000000, "budget_window": "calendar_month"}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_rates', 'rates', '\x0909090909090909090909090909090909090909090909090909090909090909', 'tw-…0009', NULL, '2026-09-27 02:33:31.75+00', NULL, NULL, 16, 'proj_free', '{"rpm": 60, "tpm": 9000, "parallel": 2}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_spent', 'spent', '\x0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a', 'tw-…0010', NULL, '2026-09-27 03:33:33+00', NULL, NULL, 17, 'proj_default', '{"budget_usd": 1000000000}', 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.api_keys VALUES ('key_plain', 'plain', '\x0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b', 'tw-…0011', NULL, '2026-09-27 04:33:34.25+00', NULL, NULL, 18, 'proj_default', NULL, 'finish', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.balances VALUES ('key_12h', 0.950000285, 0.617283945, 500, 100, 250, 0, 750, 5);
INSERT INTO public.balances VALUES ('key_24h', 1.360000462, 0.617283945, 500, 100, 250, 0, 750, 6);
INSERT INTO public.balances VALUES ('key_30d', 2.750001005, 0.617283945, 500, 100, 250, 0, 750, 5);
INSERT INTO public.balances VALUES ('key_4w', 2.260000822, 0.617283945, 500, 100, 250, 0, 750, 6);
INSERT INTO public.balances VALUES ('key_7d', 1.850000645, 0.617283945, 500, 100, 250, 0, 750, 5);
INSERT INTO public.balances VALUES ('key_none', 0.460000102, 0.617283945, 500, 100, 250, 0, 750, 6);
INSERT INTO public.balances VALUES ('key_calendarmonth', 3.160001182, 0.617283945, 500, 100, 250, 0, 750, 6);
INSERT INTO public.balances VALUES ('key_plain', 5.450002085, 0.617283945, 500, 100, 250, 0, 750, 5);
INSERT INTO public.balances VALUES ('key_rates', 4.550001725, 0.617283945, 500, 100, 250, 0, 750, 5);
INSERT INTO public.balances VALUES ('key_spent', 4.960001902, 0.617283945, 500, 100, 250, 0, 750, 6);
INSERT INTO public.balances VALUES ('org_paid', -60.000000009, 0.000000000, 0, 0, 0, 0, 0, 1);
INSERT INTO public.balances VALUES ('key_prepaid', -15.349998634, 0.617283945, 500, 100, 250, 0, 750, 7);
INSERT INTO public.balances VALUES ('key_both', -3.439998458, 0.617283945, 500, 100, 250, 0, 750, 7);
INSERT INTO public.ledger_clock VALUES (1, '2026-11-29 04:22:49.540496+00');
INSERT INTO public.ledger_entries_2026_10 VALUES ('4a69f65e-4520-562f-bcbc-5855a6a6d0ac', '01a18a70-a4f4-7000-8000-000000000004', 'usage', 'key_none', 'none', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.100000028, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:20.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '5160485c9b2ebdea9cbf7fcc60b380ab1f87cfefde1cf17726ea51dff899203e', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 4);
INSERT INTO public.ledger_entries_2026_10 VALUES ('7b02746a-0338-50ec-90d1-f098630120b1', '01a12371-74f4-7000-8000-000000000005', 'usage', 'key_none', 'none', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.100000035, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:20.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '84222de137f7face6ffa1c11cb4d62817ee1bd60daf906c31d8d711aedd89a4c', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 5);
INSERT INTO public.ledger_entries_2026_10 VALUES ('4a1d59d1-0a9b-5557-ae67-1ca99d8cf247', '01a18a70-a10c-7000-8000-000000000009', 'usage', 'key_12h', '12h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.190000064, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:19.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '5d4459c4acd8c44c45d3e24010d84dcf65b62c0ec189d19e70390914713e82af', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 9);
INSERT INTO public.ledger_entries_2026_10 VALUES ('d507fb05-fc81-5ff5-aeb6-0d70c5b411fb', '01a12371-710c-7000-8000-00000000000a', 'usage', 'key_12h', '12h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.190000071, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:19.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '2a8524fb7a28e8d79f715286223cf88536ff3e707f095aabc50c47e736a1f524', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 10);
INSERT INTO public.ledger_entries_2026_10 VALUES ('f70176f3-d740-5697-898f-1d2bc480d9b9', '01a18a70-9d24-7000-8000-00000000000e', 'usage', 'key_24h', '24h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.280000100, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:18.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '1bc69e5a110848052dfac535083653aa56bdd3ad80689f69376e99480f70d182', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 15);
INSERT INTO public.ledger_entries_2026_10 VALUES ('a7419d02-eb51-5885-b8d0-b8df813b8bdf', '01a12371-6d24-7000-8000-00000000000f', 'usage', 'key_24h', '24h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.280000107, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:18.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'fbe2cdb098d96caa5370c0433bd29d89ad8179d743b2a64f89349fede92c0c76', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 16);
INSERT INTO public.ledger_entries_2026_10 VALUES ('7e8869e2-1432-5481-9a8d-82f797cd175b', '01a18a70-993c-7000-8000-000000000013', 'usage', 'key_7d', '7d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.370000136, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:17.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '0cf6e9e21458d39e4e542e5db61d1285f8c0838ca9bef045d33e59b7d054fc29', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 20);
INSERT INTO public.ledger_entries_2026_10 VALUES ('a11bfeed-f8df-591c-89bb-2cdb222d3699', '01a12371-693c-7000-8000-000000000014', 'usage', 'key_7d', '7d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.370000143, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:17.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '01f15d486fd32c1941e3c516035d0c6cb4a0b299d70e254b86d26ba6b6d81b05', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 21);
INSERT INTO public.ledger_entries_2026_10 VALUES ('044e72fe-80a9-5ab4-9e77-ceaf0cd48247', '01a18a70-9554-7000-8000-000000000018', 'usage', 'key_4w', '4w', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.460000172, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:16.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'aa63bea5d4da7cdd6cac89d3c030db891c85d359d804cfef58edc3a09844a1d0', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 26);
INSERT INTO public.ledger_entries_2026_10 VALUES ('cfc4701d-8800-56e7-909f-3870028a8de6', '01a12371-6554-7000-8000-000000000019', 'usage', 'key_4w', '4w', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.460000179, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:16.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '51dae46b65767dd4d79f7e10f6e151a61c69a1037b89fbc8acf36e05374fad0f', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 27);
INSERT INTO public.ledger_entries_2026_10 VALUES ('f38a4219-db92-5446-a9e2-a61839aef4ff', '01a18a70-916c-7000-8000-00000000001d', 'usage', 'key_30d', '30d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.550000208, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:15.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '2074b5a400bed351db12ac7315ffb74b308d83a1183fe84a4f5d1d59368e3b0b', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 31);
INSERT INTO public.ledger_entries_2026_10 VALUES ('e190457a-b679-5495-ad90-3f50a1593b7f', '01a12371-616c-7000-8000-00000000001e', 'usage', 'key_30d', '30d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.550000215, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:15.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '6c2ad4900efdc33d3b1ce9c576f51040776358ec53465b92e4734e86544b7da5', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 32);
INSERT INTO public.ledger_entries_2026_10 VALUES ('2c7536a6-6762-579f-ba6f-9363c6003e44', '01a18a70-8d84-7000-8000-000000000022', 'usage', 'key_calendarmonth', 'calendarmonth', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.640000244, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:14.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'b63a789ced2c1380fbb064abd16fd7d32db4385592d11f0714b97c158660d52b', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 37);
INSERT INTO public.ledger_entries_2026_10 VALUES ('695b8da2-1fa3-5fba-a77f-f9bd5886d6bb', '01a12371-5d84-7000-8000-000000000023', 'usage', 'key_calendarmonth', 'calendarmonth', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.640000251, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:14.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '082a29e28cc632f6d5843fd8949ec6eba18ee0a7ce994810048945aeb0239d10', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 38);
INSERT INTO public.ledger_entries_2026_10 VALUES ('4c4aebd5-7145-55e1-9dd9-6cabd7699ce9', '01a18a70-899c-7000-8000-000000000027', 'usage', 'key_prepaid', 'prepaid', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.730000280, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:13.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'bbb58f72bcbced347f586d4faf8065bb0a045ecfb3fee6fefa4e56b1309dfc03', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 42);
INSERT INTO public.ledger_entries_2026_10 VALUES ('a6bbe6dd-e768-5ad0-a853-96649106f11f', '01a12371-599c-7000-8000-000000000028', 'usage', 'key_prepaid', 'prepaid', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.730000287, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:13.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '9f2d5da8c9e17ac9ccbe7716439b43bcd959d2f81b0d21b99823e7fac4ffbd90', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 43);
INSERT INTO public.ledger_entries_2026_10 VALUES ('9c0f2e2c-65ac-58a9-a21b-2e75600c61a1', '01a18a70-85b4-7000-8000-00000000002c', 'usage', 'key_both', 'both', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.820000316, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:12.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'a55f8784fe340bc8a4e320a3368b59a9c27045493a5030e90661c305b9923bed', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 48);
INSERT INTO public.ledger_entries_2026_10 VALUES ('38af44db-a587-5b02-ae3e-425c9a2f6597', '01a12371-55b4-7000-8000-00000000002d', 'usage', 'key_both', 'both', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.820000323, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:12.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '1a2b0146b7683a9daf170e264abd67de1d535f71e7a03c532285e414d41e9f3f', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 49);
INSERT INTO public.ledger_entries_2026_10 VALUES ('38c7ef22-ff19-50e7-b323-bc31d1a3e24f', '01a18a70-81cc-7000-8000-000000000031', 'usage', 'key_rates', 'rates', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.910000352, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:11.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '7b6317507b052b652bf35f059c7fb103670da758c166292b030a16467fd397b1', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 53);
INSERT INTO public.ledger_entries_2026_10 VALUES ('f7db4e19-d682-52c5-a862-7b0f34a07fc1', '01a12371-51cc-7000-8000-000000000032', 'usage', 'key_rates', 'rates', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.910000359, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:11.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '3442889197eaa581b32dc7fe2c8d5c5db53a198ef11fb7a80578a9245a5dfbec', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 54);
INSERT INTO public.ledger_entries_2026_10 VALUES ('039e5607-e1da-5600-b499-cc1388d2f186', '01a18a70-7de4-7000-8000-000000000036', 'usage', 'key_spent', 'spent', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.000000388, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:10.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '0a489d0edce5239019d1ed9cf4203d97b6a1c025f8c07d5194b4a3c36659b0dc', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 59);
INSERT INTO public.ledger_entries_2026_10 VALUES ('5a62d5b5-385a-567a-a2b5-b3af1f12575e', '01a12371-4de4-7000-8000-000000000037', 'usage', 'key_spent', 'spent', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.000000395, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:10.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '9ce82f73a75db41b8271701b736540115654e65608466a3c7df111bb4e3accb1', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 60);
INSERT INTO public.ledger_entries_2026_10 VALUES ('7bf15684-7216-55a4-acf2-c49aefb56a92', '01a18a70-79fc-7000-8000-00000000003b', 'usage', 'key_plain', 'plain', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.090000424, 'config-0badcafe', 'resp-1', '2026-10-30 01:33:09.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '5bd804e96886ed34d928bba180bb95ec3c45b14a689ab72994fcaeaee6dbe249', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 64);
INSERT INTO public.ledger_entries_2026_10 VALUES ('5c51933b-1ee3-5364-be6d-7925e8c1df45', '01a12371-49fc-7000-8000-00000000003c', 'usage', 'key_plain', 'plain', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.090000431, 'config-0badcafe', 'resp-1', '2026-10-10 01:33:09.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '4a6caa09c0216b9581a9f22419d965f8e55b2b4c164540abd1a3f0ca20126c63', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 65);
INSERT INTO public.ledger_entries_2026_10 VALUES ('512eeafa-fd14-58b4-8670-06c30b1f8965', '01a1417b-e2f4-7000-8000-000000000384', 'credit', 'org_paid', 'Paid ahead', '', '', '', '', false, 'credit', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, -60.000000009, NULL, NULL, '2026-10-15 21:33:20.5+00', NULL, 0, '{"by": "operator", "why": "invoice 7"}', 0, 'b3e5032fcb1003d9bff4498ea468f9aa5cc1acbc47c495db3328685283c34607', '2026-11-29 04:22:49.501774+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('5ffa4b19-d48c-5c1f-b9ee-1fc643ba4b19', '01a1417b-e2f4-7000-8000-000000000385', 'credit', 'key_prepaid', 'prepaid', '', '', '', '', false, 'credit', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, -20.000000000, NULL, NULL, '2026-10-15 21:33:20.5+00', NULL, 0, '{"by": "operator", "why": "invoice 7"}', 0, 'f8165dbf1a2607ab9794b7e8960aa0c60258eaed3768070cc2cfe92b3ce5780a', '2026-11-29 04:22:49.505977+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('c17b55bb-ff45-52ae-989a-7f7fe8154f5f', '01a1417b-e2f4-7000-8000-000000000386', 'credit', 'key_prepaid', 'prepaid', '', '', '', '', false, 'credit', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, 1.000000001, NULL, NULL, '2026-10-15 21:33:20.5+00', NULL, 0, '{"by": "operator", "why": "invoice 7"}', 0, 'da264d99233d392abf16eaea90ea60a7f4a12b0f84ed57d927040ebdc17e110a', '2026-11-29 04:22:49.507961+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_10 VALUES ('520e7b6f-cbe9-5216-ae50-92d270755ad5', '01a1417b-e2f4-7000-8000-000000000387', 'credit', 'key_both', 'both', '', '', '', '', false, 'credit', NULL, 'none', NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0.000000000, -7.500000000, NULL, NULL, '2026-10-15 21:33:20.5+00', NULL, 0, '{"by": "operator", "why": "invoice 7"}', 0, '0133030eff3f180c562000f61cc7c894ef010ba6f2e534c8ae6c361a84346cca', '2026-11-29 04:22:49.538941+00', NULL, NULL);
INSERT INTO public.ledger_entries_2026_11 VALUES ('416005c9-22f4-587b-93da-990183fa14c9', '01a1ac8e-c674-7000-8000-000000000001', 'usage', 'key_none', 'none', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.100000007, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:20.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'e1d4c91194686f06e26a75356b5b7cde48d1538fd74349008d062a6c663160a5', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 0);
INSERT INTO public.ledger_entries_2026_11 VALUES ('5b6f85cc-f5d6-5705-9a78-421e4b8fcc45', '01a1aa4d-fe34-7000-8000-000000000002', 'usage', 'key_none', 'none', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.100000014, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:20.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '26875449a45f30ef536036cdc952d5e1ebc61a02a2bb9d41572ed90a49afd219', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 1);
INSERT INTO public.ledger_entries_2026_11 VALUES ('93ba556e-d8da-5214-9442-32f5d9b37f03', '01a1a2af-eb74-7000-8000-000000000003', 'usage', 'key_none', 'none', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.100000021, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:20.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '824914f2f44ece56d7995f4f8332ec52d3716f8a8ada79e4d93751f48d2a1ce2', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 2);
INSERT INTO public.ledger_entries_2026_11 VALUES ('36074f13-394e-5c92-92ba-9efe2fb087a4', '01a1a2af-eb74-7000-8000-000000000003', 'adjustment', 'key_none', 'none', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'adjusted', 'stop', 'reported', NULL, 0, 0, 0, NULL, 0, 33, 9000, 0.000000000, -0.040000003, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:20.5+00', 321.5, 1200.125, '{"reason": "price"}', 1, 'd29f89fec13b127c6f87901b8183e7900787ef0d29eec32aa5c3365aa918fd79', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 3);
INSERT INTO public.ledger_entries_2026_11 VALUES ('364712b5-96d8-554a-81b3-8e1f6445927d', '01a1ac8e-c28c-7000-8000-000000000006', 'usage', 'key_12h', '12h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.190000043, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:19.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '08c1fab21597dd3b112bbdbc30d6e64d0a00cf2f3e92216b57fee5995006d2ec', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 6);
INSERT INTO public.ledger_entries_2026_11 VALUES ('c85edf3c-3144-580a-ba6f-ab8177ceb8d7', '01a1aa4d-fa4c-7000-8000-000000000007', 'usage', 'key_12h', '12h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.190000050, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:19.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '5222a2698e74032d2e6ecdb4e382233999b6cc084c7b948236f91131462b87d5', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 7);
INSERT INTO public.ledger_entries_2026_11 VALUES ('83dedafc-3a7a-509d-a653-bea9b72fe968', '01a1a2af-e78c-7000-8000-000000000008', 'usage', 'key_12h', '12h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.190000057, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:19.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '37bb4702aed32ca957f6e80da7e464bbb8dee78c823693c5d7e94acfcd64068b', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 8);
INSERT INTO public.ledger_entries_2026_11 VALUES ('ee501a10-363b-52a5-85ab-5191bdacec8b', '01a1ac8e-bea4-7000-8000-00000000000b', 'usage', 'key_24h', '24h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.280000079, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:18.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'b7dd7e15620ba83caf2871142de26d0b49e29a3b2462c1ef022b7cbb46a336f9', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 11);
INSERT INTO public.ledger_entries_2026_11 VALUES ('f82137fc-a3ea-56dc-85ff-9e0b05fa1362', '01a1aa4d-f664-7000-8000-00000000000c', 'usage', 'key_24h', '24h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.280000086, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:18.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '43870af613e283624d9484ea84cbfe695ad80e35092f671b1eb1b20ceab2a352', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 12);
INSERT INTO public.ledger_entries_2026_11 VALUES ('892ad89f-9f43-509a-ad79-d4ae88f5d467', '01a1a2af-e3a4-7000-8000-00000000000d', 'usage', 'key_24h', '24h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.280000093, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:18.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '68e8a6ad3d9cc4f1af0b1f60e4043cd69a914c091cf283d10e4b305da8ee3f9d', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 13);
INSERT INTO public.ledger_entries_2026_11 VALUES ('04de509d-a054-5040-8ade-96fe2390b9ba', '01a1a2af-e3a4-7000-8000-00000000000d', 'adjustment', 'key_24h', '24h', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'adjusted', 'stop', 'reported', NULL, 0, 0, 0, NULL, 0, 33, 9000, 0.000000000, -0.040000003, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:18.5+00', 321.5, 1200.125, '{"reason": "price"}', 1, '7b8e8df900036387d949057cb52e45857b21641b5ea792fe69489acd5b8f4413', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 14);
INSERT INTO public.ledger_entries_2026_11 VALUES ('a3da52dd-c9c0-57d9-9add-e847897e9355', '01a1ac8e-babc-7000-8000-000000000010', 'usage', 'key_7d', '7d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.370000115, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:17.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'aebdd1f54e848296ec5d237a03808df65197cad93750db6371b4fc6d6d34c1dd', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 17);
INSERT INTO public.ledger_entries_2026_11 VALUES ('cadfbfcf-e622-5e08-84ed-408a293c7198', '01a1aa4d-f27c-7000-8000-000000000011', 'usage', 'key_7d', '7d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.370000122, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:17.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '9771240c1dc8139615ba0e0f6c3c01199b10dad7929e96ee94faaa5b47a759a0', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 18);
INSERT INTO public.ledger_entries_2026_11 VALUES ('cc52a9c4-6f0b-5c46-a7a2-5d6836e4cdde', '01a1a2af-dfbc-7000-8000-000000000012', 'usage', 'key_7d', '7d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.370000129, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:17.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '29d228333ee34d0cbb1d16944bee7015501bd3c21b3d089bcf6b284e6adfcb0b', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 19);
INSERT INTO public.ledger_entries_2026_11 VALUES ('0a75fef8-5eb3-589d-8e42-b519a091ed65', '01a1ac8e-b6d4-7000-8000-000000000015', 'usage', 'key_4w', '4w', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.460000151, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:16.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '61957753c27bf0b2365d8fb3807031f05bcba459d052bc32ee139ffe23954eeb', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 22);
INSERT INTO public.ledger_entries_2026_11 VALUES ('fe2a0060-b97a-5d61-8658-5cff9968ca0f', '01a1aa4d-ee94-7000-8000-000000000016', 'usage', 'key_4w', '4w', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.460000158, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:16.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'b3ffca5d5b0a3e5d3b01bf2eacdd2486c117e6f5ae200e4a34703d33cb6fa350', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 23);
INSERT INTO public.ledger_entries_2026_11 VALUES ('6e83b224-70db-5cd1-8cbd-accd71d58ced', '01a1a2af-dbd4-7000-8000-000000000017', 'usage', 'key_4w', '4w', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.460000165, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:16.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'e3f88505943e28aa5f5aea43153dfe69cec7cfecd66bb304a6a844629a305fd1', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 24);
INSERT INTO public.ledger_entries_2026_11 VALUES ('191e6cd5-747a-5cdd-86fa-a006d55e10ec', '01a1a2af-dbd4-7000-8000-000000000017', 'adjustment', 'key_4w', '4w', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'adjusted', 'stop', 'reported', NULL, 0, 0, 0, NULL, 0, 33, 9000, 0.000000000, -0.040000003, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:16.5+00', 321.5, 1200.125, '{"reason": "price"}', 1, 'c3870683b1496e10b9511d125069ba0fa628a454eb71b852d5ff7c2142e9d1da', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 25);
INSERT INTO public.ledger_entries_2026_11 VALUES ('8d9fb4ec-f7c7-5cc7-9730-05c1fa2b2f10', '01a1ac8e-b2ec-7000-8000-00000000001a', 'usage', 'key_30d', '30d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.550000187, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:15.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'e39bc020cf230f2fc195b47a4a98c2b25ed2547c5440e6efaae31b09734287cc', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 28);
INSERT INTO public.ledger_entries_2026_11 VALUES ('14c3e171-7cc1-5764-ad99-b4b1dcec2b97', '01a1aa4d-eaac-7000-8000-00000000001b', 'usage', 'key_30d', '30d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.550000194, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:15.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'dec6d27aff61c4e91b3989ab0142ceb4aee7a5a354e7a2726240c5009da5b04f', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 29);
INSERT INTO public.ledger_entries_2026_11 VALUES ('f6fa2c9e-731b-5adf-8074-82c536776b38', '01a1a2af-d7ec-7000-8000-00000000001c', 'usage', 'key_30d', '30d', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.550000201, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:15.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'd2e29b5c41c2c4403226f9f06dbecd53912e6b055e2dfd4ae880dd6e7c1da05f', '2026-11-29 04:22:49.450776+00', 'ce9042c49e58c5ac', 30);
INSERT INTO public.ledger_entries_2026_11 VALUES ('1b9d4827-1a32-5a14-8a01-2e540254740e', '01a1ac8e-af04-7000-8000-00000000001f', 'usage', 'key_calendarmonth', 'calendarmonth', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.640000223, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:14.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '19048933772d28b55a85bed3591eef10a8aeb416e90cdde12150d43e39b86360', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 33);
INSERT INTO public.ledger_entries_2026_11 VALUES ('9e8fdb71-9b5b-5a2c-920d-8b0a766a77e0', '01a1aa4d-e6c4-7000-8000-000000000020', 'usage', 'key_calendarmonth', 'calendarmonth', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.640000230, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:14.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'af8ebdf34b48b24c10f9d462858ed62857693bd47130d9ba03f36d8c860bbd7b', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 34);
INSERT INTO public.ledger_entries_2026_11 VALUES ('0c41e9f0-b6ed-57e1-a97f-18374c87c008', '01a1a2af-d404-7000-8000-000000000021', 'usage', 'key_calendarmonth', 'calendarmonth', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.640000237, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:14.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '385f491c45914e700979a8ce4c857b95e5e856fd5a84bc94e55e3abfc38c543d', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 35);
INSERT INTO public.ledger_entries_2026_11 VALUES ('bce5bbd1-09ce-527f-a36b-aaaf2c065010', '01a1a2af-d404-7000-8000-000000000021', 'adjustment', 'key_calendarmonth', 'calendarmonth', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'adjusted', 'stop', 'reported', NULL, 0, 0, 0, NULL, 0, 33, 9000, 0.000000000, -0.040000003, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:14.5+00', 321.5, 1200.125, '{"reason": "price"}', 1, '2c6692c2c18b591936f0503c91b2be7222a302e92d21cacaf27f85f6cff5c395', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 36);
INSERT INTO public.ledger_entries_2026_11 VALUES ('f0385537-d640-5a39-b506-faa6143bda07', '01a1ac8e-ab1c-7000-8000-000000000024', 'usage', 'key_prepaid', 'prepaid', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.730000259, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:13.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '1b1edf2306ebc7b118dacd3bf513ea2c87ed4e14927f1ae926c49305786f0ffb', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 39);
INSERT INTO public.ledger_entries_2026_11 VALUES ('a03b9778-6cf0-5a60-b8dd-98ff7a9405f7', '01a1aa4d-e2dc-7000-8000-000000000025', 'usage', 'key_prepaid', 'prepaid', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.730000266, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:13.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '6dec6bb4a44ba0f56b0b50a7612b4fd0fea946414b43170e3a0b75a3d27caa79', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 40);
INSERT INTO public.ledger_entries_2026_11 VALUES ('8b89b7eb-0a39-5e73-9538-336d7e235d81', '01a1a2af-d01c-7000-8000-000000000026', 'usage', 'key_prepaid', 'prepaid', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.730000273, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:13.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'afebc6ffa96474387b8cec2fb3f34704c7a85f98f4379d2e0a1ae6b2f55d11f4', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 41);
INSERT INTO public.ledger_entries_2026_11 VALUES ('1451bade-ede9-52e2-a22a-110f30dcd5ce', '01a1ac8e-a734-7000-8000-000000000029', 'usage', 'key_both', 'both', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.820000295, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:12.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '94e830f2dd60b47ee186a8c771a671994fabf2c20759ba226b86a3848fbd177f', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 44);
INSERT INTO public.ledger_entries_2026_11 VALUES ('de6dea95-b702-5b64-a906-5dbd4d89ea0f', '01a1aa4d-def4-7000-8000-00000000002a', 'usage', 'key_both', 'both', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.820000302, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:12.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '957f5f72b100660ba54f3c5f3fdebf6a10b3fba7d18c41d57442c1f7f92fe01e', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 45);
INSERT INTO public.ledger_entries_2026_11 VALUES ('36d4aec1-99a4-5085-b4ea-1b3a4a2f64c8', '01a1a2af-cc34-7000-8000-00000000002b', 'usage', 'key_both', 'both', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.820000309, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:12.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'ea1dc495d45e65f4fca84ddcff25ec470edb1b822b229bd6b6e9775e3026b9bf', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 46);
INSERT INTO public.ledger_entries_2026_11 VALUES ('6b0c86a4-0d58-50ef-a366-8a23ec7eb432', '01a1a2af-cc34-7000-8000-00000000002b', 'adjustment', 'key_both', 'both', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'adjusted', 'stop', 'reported', NULL, 0, 0, 0, NULL, 0, 33, 9000, 0.000000000, -0.040000003, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:12.5+00', 321.5, 1200.125, '{"reason": "price"}', 1, '6805bb8d90aed5de35f2d6e66260489fc7792a1724085c14be3b4a4c6cf945f5', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 47);
INSERT INTO public.ledger_entries_2026_11 VALUES ('7075a6a6-9714-5897-b351-adfe117bfd5f', '01a1ac8e-a34c-7000-8000-00000000002e', 'usage', 'key_rates', 'rates', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.910000331, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:11.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '0b7cfd912a3165e8adbf1ba0857931a338c905ad95f7991bba239e81b61fd03f', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 50);
INSERT INTO public.ledger_entries_2026_11 VALUES ('b115c7c3-c893-554f-8b54-cc176ff5d4d9', '01a1aa4d-db0c-7000-8000-00000000002f', 'usage', 'key_rates', 'rates', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.910000338, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:11.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '546bc405e265dfc319bedf2ef95e9a613a5c550d1d9e5d6158a0c55419535092', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 51);
INSERT INTO public.ledger_entries_2026_11 VALUES ('ca91437f-0c88-5bea-a133-21fbdbc6d3fa', '01a1a2af-c84c-7000-8000-000000000030', 'usage', 'key_rates', 'rates', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 0.910000345, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:11.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'b49d559a6c4c20e1526f64cf5987d30e71103072ba12c09f58fb27d1b5a8c772', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 52);
INSERT INTO public.ledger_entries_2026_11 VALUES ('0cd8f7ca-4b83-5b3b-bd9d-d0685b37d4aa', '01a1ac8e-9f64-7000-8000-000000000033', 'usage', 'key_spent', 'spent', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.000000367, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:10.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '3e21fd9aac0610930515c096d04634915a24b20d387c3c4f9051d879261f9b21', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 55);
INSERT INTO public.ledger_entries_2026_11 VALUES ('2ca20d16-cc34-5251-a202-cc396952ca39', '01a1aa4d-d724-7000-8000-000000000034', 'usage', 'key_spent', 'spent', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.000000374, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:10.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '5c5f8e055752d02158f854598c5385f06cc5c53ebb29eca094b25f232184cbb1', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 56);
INSERT INTO public.ledger_entries_2026_11 VALUES ('30cc8f81-7950-56f2-9f7e-ca6896cc6e8e', '01a1a2af-c464-7000-8000-000000000035', 'usage', 'key_spent', 'spent', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.000000381, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:10.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'dea99c9ea34ea6220cdda97e6c807af5e7ef6fb6ea4c07a5a14e9e65ee0defa1', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 57);
INSERT INTO public.ledger_entries_2026_11 VALUES ('49a00ce9-c181-535d-868d-4933c50dba47', '01a1a2af-c464-7000-8000-000000000035', 'adjustment', 'key_spent', 'spent', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'adjusted', 'stop', 'reported', NULL, 0, 0, 0, NULL, 0, 33, 9000, 0.000000000, -0.040000003, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:10.5+00', 321.5, 1200.125, '{"reason": "price"}', 1, '78ed49bba34a4f69b67741be9620e7f714427da8549c663d4c70064185acb2d1', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 58);
INSERT INTO public.ledger_entries_2026_11 VALUES ('c98e798b-c85d-5324-b934-9d1725a7f6b4', '01a1ac8e-9b7c-7000-8000-000000000038', 'usage', 'key_plain', 'plain', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.090000403, 'config-0badcafe', 'resp-1', '2026-11-05 16:33:09.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '03020e2bc33fc65545bc577056205ab53736b6a88ba8edb47b89732f35eace56', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 61);
INSERT INTO public.ledger_entries_2026_11 VALUES ('c1f9c662-43e0-58b8-b48d-3a9bc24a5b76', '01a1aa4d-d33c-7000-8000-000000000039', 'usage', 'key_plain', 'plain', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.090000410, 'config-0badcafe', 'resp-1', '2026-11-05 06:03:09.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, '08a9e587fc639c0683cd9c732e4fe51251c2b97723ebbec17e7b3fa84407e63d', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 62);
INSERT INTO public.ledger_entries_2026_11 VALUES ('4f2ec23d-8bcc-57ff-854d-eb0eeeede935', '01a1a2af-c07c-7000-8000-00000000003a', 'usage', 'key_plain', 'plain', 'tera', 'tera-large', 'tera-large-0901', '/v1/chat/completions', true, 'served', 'stop', 'reported', NULL, 100, 20, 50, NULL, 150, 33, 9000, 0.123456789, 1.090000417, 'config-0badcafe', 'resp-1', '2026-11-03 18:33:09.5+00', 321.5, 1200.125, '{"bills": "prompt+output"}', 0, 'cca000fbad98e0bcac8020aea32b6423617590307cb347ed06c975fb662c5345', '2026-11-29 04:22:49.484327+00', 'ce9042c49e58c5ac', 63);
INSERT INTO public.periods VALUES ('2026-10', '2026-11-29 04:22:49.540496+00', 'golden', NULL, NULL, NULL, NULL);
INSERT INTO public.stored_batches VALUES ('01a1ac57-d7f4-7000-8000-000000000320', 'batch_0', 'openai.batches', 'p', NULL, 'key_7d', '7d', 'proj_chat', '2026-11-05 15:33:20.5+00', 'running', '/v1/embeddings', 'file-1', 2, 1.500000001, 'ff', '[]', '[]', '2026-11-05 17:34:20.5+00', 'golden-node');
INSERT INTO public.stored_batches VALUES ('01a1ac57-d7f4-7000-8000-000000000321', 'batch_1', 'openai.batches', 'p', NULL, 'key_both', 'both', 'proj_free', '2026-11-05 15:33:20.5+00', 'running', '/v1/embeddings', 'file-1', 2, 1.500000002, 'ff', '[]', '[]', '2026-11-05 17:34:20.5+00', 'golden-node');
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_12h', 'tera-large', 0.190000071, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_12h', 'tera-large', 0.190000064, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_12h', 'tera-large', 0.190000057, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_12h', 'tera-large', 0.380000093, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_24h', 'tera-large', 0.280000107, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_24h', 'tera-large', 0.280000100, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_24h', 'tera-large', 0.240000090, 0.123456789, 100, 20, 50, 0, 150, 2);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_24h', 'tera-large', 0.560000165, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_30d', 'tera-large', 0.550000215, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_30d', 'tera-large', 0.550000208, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_30d', 'tera-large', 0.550000201, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_30d', 'tera-large', 1.100000381, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_4w', 'tera-large', 0.460000179, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_4w', 'tera-large', 0.460000172, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_4w', 'tera-large', 0.420000162, 0.123456789, 100, 20, 50, 0, 150, 2);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_4w', 'tera-large', 0.920000309, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_7d', 'tera-large', 0.370000143, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_7d', 'tera-large', 0.370000136, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_7d', 'tera-large', 0.370000129, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_7d', 'tera-large', 0.740000237, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_none', 'tera-large', 0.100000035, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_none', 'tera-large', 0.100000028, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_none', 'tera-large', 0.060000018, 0.123456789, 100, 20, 50, 0, 150, 2);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_none', 'tera-large', 0.200000021, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_both', 'tera-large', 0.820000323, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_both', 'tera-large', 0.820000316, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_both', 'tera-large', 0.780000306, 0.123456789, 100, 20, 50, 0, 150, 2);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_both', 'tera-large', 1.640000597, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_calendarmonth', 'tera-large', 0.640000251, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_calendarmonth', 'tera-large', 0.640000244, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_calendarmonth', 'tera-large', 0.600000234, 0.123456789, 100, 20, 50, 0, 150, 2);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_calendarmonth', 'tera-large', 1.280000453, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_plain', 'tera-large', 1.090000431, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_plain', 'tera-large', 1.090000424, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_plain', 'tera-large', 1.090000417, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_plain', 'tera-large', 2.180000813, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_prepaid', 'tera-large', 0.730000287, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_prepaid', 'tera-large', 0.730000280, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_prepaid', 'tera-large', 0.730000273, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_prepaid', 'tera-large', 1.460000525, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_rates', 'tera-large', 0.910000359, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_rates', 'tera-large', 0.910000352, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_rates', 'tera-large', 0.910000345, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_rates', 'tera-large', 1.820000669, 0.246913578, 200, 40, 100, 0, 300, 2);
INSERT INTO public.usage_daily VALUES ('2026-10-10', 'key_spent', 'tera-large', 1.000000395, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-10-30', 'key_spent', 'tera-large', 1.000000388, 0.123456789, 100, 20, 50, 0, 150, 1);
INSERT INTO public.usage_daily VALUES ('2026-11-03', 'key_spent', 'tera-large', 0.960000378, 0.123456789, 100, 20, 50, 0, 150, 2);
INSERT INTO public.usage_daily VALUES ('2026-11-05', 'key_spent', 'tera-large', 2.000000741, 0.246913578, 200, 40, 100, 0, 300, 2);
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
ALTER TABLE ONLY public.account_clock
    ADD CONSTRAINT pk_account_clock PRIMARY KEY (id);
ALTER TABLE ONLY public.account_daily
    ADD CONSTRAINT pk_account_daily PRIMARY KEY (account_id, day);
ALTER TABLE ONLY public.accounts
    ADD CONSTRAINT pk_accounts PRIMARY KEY (account_id);
ALTER TABLE ONLY public.acts
    ADD CONSTRAINT pk_acts PRIMARY KEY (act_id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT pk_api_keys PRIMARY KEY (key_id);
ALTER TABLE ONLY public.archived_receipts
    ADD CONSTRAINT pk_archived_receipts PRIMARY KEY (node, first_seq);
ALTER TABLE ONLY public.archived_sums
    ADD CONSTRAINT pk_archived_sums PRIMARY KEY (month, key_id, day, model, kind);
ALTER TABLE ONLY public.archives
    ADD CONSTRAINT pk_archives PRIMARY KEY (month);
ALTER TABLE ONLY public.balances
    ADD CONSTRAINT pk_balances PRIMARY KEY (key_id);
ALTER TABLE ONLY public.budget_alerts
    ADD CONSTRAINT pk_budget_alerts PRIMARY KEY (alert_id);
ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT pk_dead_letters PRIMARY KEY (id);
ALTER TABLE ONLY public.ledger_clock
    ADD CONSTRAINT pk_ledger_clock PRIMARY KEY (id);
ALTER TABLE ONLY public.periods
    ADD CONSTRAINT pk_periods PRIMARY KEY (month);
ALTER TABLE ONLY public.price_lists
    ADD CONSTRAINT pk_price_lists PRIMARY KEY (name);
ALTER TABLE ONLY public.scope_months
    ADD CONSTRAINT pk_scope_months PRIMARY KEY (scope_id, month);
ALTER TABLE ONLY public.sink_letters
    ADD CONSTRAINT pk_sink_letters PRIMARY KEY (sink, entry_id);
ALTER TABLE ONLY public.sinks
    ADD CONSTRAINT pk_sinks PRIMARY KEY (name);
ALTER TABLE ONLY public.stored_batches
    ADD CONSTRAINT pk_stored_batches PRIMARY KEY (exchange_id);
ALTER TABLE ONLY public.stored_files
    ADD CONSTRAINT pk_stored_files PRIMARY KEY (file_id);
ALTER TABLE ONLY public.usage_daily
    ADD CONSTRAINT pk_usage_daily PRIMARY KEY (key_id, day, model);
ALTER TABLE ONLY public.accounts
    ADD CONSTRAINT uq_accounts_revision UNIQUE (revision);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT uq_api_keys_digest UNIQUE (digest);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT uq_api_keys_revision UNIQUE (revision);
ALTER TABLE ONLY public.stored_batches
    ADD CONSTRAINT uq_stored_batches_batch_id UNIQUE (batch_id);
CREATE INDEX ix_accounts_parent_id ON public.accounts USING btree (parent_id);
CREATE INDEX ix_api_keys_alias ON public.api_keys USING btree (alias);
CREATE INDEX ix_api_keys_created_at_key_id ON public.api_keys USING btree (created_at, key_id);
CREATE INDEX ix_api_keys_old_digest ON public.api_keys USING btree (old_digest) WHERE (old_digest IS NOT NULL);
CREATE INDEX ix_api_keys_project_id ON public.api_keys USING btree (project_id);
CREATE INDEX ix_budget_alerts_state_next_at ON public.budget_alerts USING btree (state, next_at);
CREATE INDEX ix_dead_letters_exchange_id ON public.dead_letters USING btree (exchange_id);
CREATE INDEX ix_dead_letters_first_seen ON public.dead_letters USING btree (first_seen);
CREATE INDEX ix_dead_letters_node_journal_seq ON public.dead_letters USING btree (node, journal_seq);
CREATE INDEX ix_ledger_entries_unknown_amount ON ONLY public.ledger_entries USING btree (started_at) WHERE (((kind)::text = 'usage'::text) AND ((cost_usd IS NULL) OR (charge_usd IS NULL)));
CREATE INDEX ix_ledger_entries_default_unknown_amount ON public.ledger_entries_default USING btree (started_at) WHERE (((kind)::text = 'usage'::text) AND ((cost_usd IS NULL) OR (charge_usd IS NULL)));
CREATE INDEX ix_ledger_entries_key_id_started_at ON ONLY public.ledger_entries USING btree (key_id, started_at);
CREATE INDEX ix_ledger_entries_model_started_at ON ONLY public.ledger_entries USING btree (model, started_at);
CREATE INDEX ix_ledger_entries_node_journal_seq ON ONLY public.ledger_entries USING btree (node, journal_seq);
CREATE INDEX ix_ledger_entries_others ON ONLY public.ledger_entries USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ix_ledger_entries_settled_at_entry_id ON ONLY public.ledger_entries USING btree (settled_at, entry_id);
CREATE INDEX ix_scope_months_month ON public.scope_months USING btree (month);
CREATE INDEX ix_sink_letters_sink_state ON public.sink_letters USING btree (sink, state);
CREATE INDEX ix_stored_batches_key_id_created_at ON public.stored_batches USING btree (key_id, created_at);
CREATE INDEX ix_stored_batches_next_at ON public.stored_batches USING btree (next_at) WHERE ((state)::text = ANY ((ARRAY['creating'::character varying, 'running'::character varying])::text[]));
CREATE INDEX ix_stored_batches_project_id_created_at ON public.stored_batches USING btree (project_id, created_at);
CREATE INDEX ix_stored_files_key_id_created_at ON public.stored_files USING btree (key_id, created_at);
CREATE INDEX ix_stored_files_project_id_created_at ON public.stored_files USING btree (project_id, created_at);
CREATE INDEX ix_usage_daily_day ON public.usage_daily USING btree (day);
CREATE INDEX ledger_entries_2026_10_key_id_started_at_idx ON public.ledger_entries_2026_10 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2026_10_model_started_at_idx ON public.ledger_entries_2026_10 USING btree (model, started_at);
CREATE INDEX ledger_entries_2026_10_node_journal_seq_idx ON public.ledger_entries_2026_10 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2026_10_settled_at_entry_id_idx ON public.ledger_entries_2026_10 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2026_10_started_at_idx ON public.ledger_entries_2026_10 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2026_10_started_at_idx1 ON public.ledger_entries_2026_10 USING btree (started_at) WHERE (((kind)::text = 'usage'::text) AND ((cost_usd IS NULL) OR (charge_usd IS NULL)));
CREATE INDEX ledger_entries_2026_11_key_id_started_at_idx ON public.ledger_entries_2026_11 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2026_11_model_started_at_idx ON public.ledger_entries_2026_11 USING btree (model, started_at);
CREATE INDEX ledger_entries_2026_11_node_journal_seq_idx ON public.ledger_entries_2026_11 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2026_11_settled_at_entry_id_idx ON public.ledger_entries_2026_11 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2026_11_started_at_idx ON public.ledger_entries_2026_11 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2026_11_started_at_idx1 ON public.ledger_entries_2026_11 USING btree (started_at) WHERE (((kind)::text = 'usage'::text) AND ((cost_usd IS NULL) OR (charge_usd IS NULL)));
CREATE INDEX ledger_entries_2026_12_key_id_started_at_idx ON public.ledger_entries_2026_12 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2026_12_model_started_at_idx ON public.ledger_entries_2026_12 USING btree (model, started_at);
CREATE INDEX ledger_entries_2026_12_node_journal_seq_idx ON public.ledger_entries_2026_12 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2026_12_settled_at_entry_id_idx ON public.ledger_entries_2026_12 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2026_12_started_at_idx ON public.ledger_entries_2026_12 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2026_12_started_at_idx1 ON public.ledger_entries_2026_12 USING btree (started_at) WHERE (((kind)::text = 'usage'::text) AND ((cost_usd IS NULL) OR (charge_usd IS NULL)));
CREATE INDEX ledger_entries_2027_01_key_id_started_at_idx ON public.ledger_entries_2027_01 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2027_01_model_started_at_idx ON public.ledger_entries_2027_01 USING btree (model, started_at);
CREATE INDEX ledger_entries_2027_01_node_journal_seq_idx ON public.ledger_entries_2027_01 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2027_01_settled_at_entry_id_idx ON public.ledger_entries_2027_01 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2027_01_started_at_idx ON public.ledger_entries_2027_01 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2027_01_started_at_idx1 ON public.ledger_entries_2027_01 USING btree (started_at) WHERE (((kind)::text = 'usage'::text) AND ((cost_usd IS NULL) OR (charge_usd IS NULL)));
CREATE INDEX ledger_entries_2027_02_key_id_started_at_idx ON public.ledger_entries_2027_02 USING btree (key_id, started_at);
CREATE INDEX ledger_entries_2027_02_model_started_at_idx ON public.ledger_entries_2027_02 USING btree (model, started_at);
CREATE INDEX ledger_entries_2027_02_node_journal_seq_idx ON public.ledger_entries_2027_02 USING btree (node, journal_seq);
CREATE INDEX ledger_entries_2027_02_settled_at_entry_id_idx ON public.ledger_entries_2027_02 USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_2027_02_started_at_idx ON public.ledger_entries_2027_02 USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
CREATE INDEX ledger_entries_2027_02_started_at_idx1 ON public.ledger_entries_2027_02 USING btree (started_at) WHERE (((kind)::text = 'usage'::text) AND ((cost_usd IS NULL) OR (charge_usd IS NULL)));
CREATE INDEX ledger_entries_default_key_id_started_at_idx ON public.ledger_entries_default USING btree (key_id, started_at);
CREATE INDEX ledger_entries_default_model_started_at_idx ON public.ledger_entries_default USING btree (model, started_at);
CREATE INDEX ledger_entries_default_node_journal_seq_idx ON public.ledger_entries_default USING btree (node, journal_seq);
CREATE INDEX ledger_entries_default_settled_at_entry_id_idx ON public.ledger_entries_default USING btree (settled_at, entry_id);
CREATE INDEX ledger_entries_default_started_at_idx ON public.ledger_entries_default USING btree (started_at) WHERE ((kind)::text <> 'usage'::text);
ALTER INDEX public.ix_ledger_entries_unknown_amount ATTACH PARTITION public.ix_ledger_entries_default_unknown_amount;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2026_10_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2026_10_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2026_10_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2026_10_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2026_10_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2026_10_started_at_idx;
ALTER INDEX public.ix_ledger_entries_unknown_amount ATTACH PARTITION public.ledger_entries_2026_10_started_at_idx1;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2026_11_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2026_11_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2026_11_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2026_11_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2026_11_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2026_11_started_at_idx;
ALTER INDEX public.ix_ledger_entries_unknown_amount ATTACH PARTITION public.ledger_entries_2026_11_started_at_idx1;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2026_12_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2026_12_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2026_12_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2026_12_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2026_12_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2026_12_started_at_idx;
ALTER INDEX public.ix_ledger_entries_unknown_amount ATTACH PARTITION public.ledger_entries_2026_12_started_at_idx1;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2027_01_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2027_01_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2027_01_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2027_01_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2027_01_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2027_01_started_at_idx;
ALTER INDEX public.ix_ledger_entries_unknown_amount ATTACH PARTITION public.ledger_entries_2027_01_started_at_idx1;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_2027_02_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_2027_02_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_2027_02_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_2027_02_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_2027_02_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_2027_02_started_at_idx;
ALTER INDEX public.ix_ledger_entries_unknown_amount ATTACH PARTITION public.ledger_entries_2027_02_started_at_idx1;
ALTER INDEX public.ix_ledger_entries_key_id_started_at ATTACH PARTITION public.ledger_entries_default_key_id_started_at_idx;
ALTER INDEX public.ix_ledger_entries_model_started_at ATTACH PARTITION public.ledger_entries_default_model_started_at_idx;
ALTER INDEX public.ix_ledger_entries_node_journal_seq ATTACH PARTITION public.ledger_entries_default_node_journal_seq_idx;
ALTER INDEX public.pk_ledger_entries ATTACH PARTITION public.ledger_entries_default_pkey;
ALTER INDEX public.ix_ledger_entries_settled_at_entry_id ATTACH PARTITION public.ledger_entries_default_settled_at_entry_id_idx;
ALTER INDEX public.ix_ledger_entries_others ATTACH PARTITION public.ledger_entries_default_started_at_idx;
