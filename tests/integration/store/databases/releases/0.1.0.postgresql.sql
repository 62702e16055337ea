SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.api_key (
    id character varying(16) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    name text NOT NULL,
    key_sha256 character varying(64) NOT NULL,
    last4 character varying(4) NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    scopes character varying(64) DEFAULT 'read,submit'::character varying NOT NULL,
    replaced_by character varying(16)
);
CREATE TABLE public.audit (
    id bigint NOT NULL,
    at bigint NOT NULL,
    actor text NOT NULL,
    action character varying(32) NOT NULL,
    tenant_id character varying(40),
    object_id text,
    details json NOT NULL
);
CREATE SEQUENCE public.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.audit_id_seq OWNED BY public.audit.id;
CREATE TABLE public.counter (
    name character varying(64) NOT NULL,
    value bigint NOT NULL
);
CREATE TABLE public.dead_row (
    id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    job_id character varying(40) NOT NULL,
    shard_id character varying(40) NOT NULL,
    "row" bigint NOT NULL,
    custom_id text,
    cause character varying(24) NOT NULL,
    crashes integer NOT NULL,
    worker_id character varying(40),
    died_at bigint NOT NULL,
    state character varying(12) NOT NULL,
    decided_at bigint,
    replay_job_id character varying(40)
);
CREATE TABLE public.deletion (
    id bigint NOT NULL,
    tenant_id character varying(40) NOT NULL,
    job_id character varying(40) NOT NULL,
    part character varying(8) NOT NULL,
    recorded_at bigint NOT NULL
);
CREATE SEQUENCE public.deletion_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.deletion_id_seq OWNED BY public.deletion.id;
CREATE TABLE public.delivery (
    id character varying(40) NOT NULL,
    event_id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    job_id character varying(40) NOT NULL,
    event_type character varying(32) NOT NULL,
    url text NOT NULL,
    body text NOT NULL,
    state character varying(12) NOT NULL,
    attempts integer NOT NULL,
    next_at bigint NOT NULL,
    created_at bigint NOT NULL,
    delivered_at bigint,
    endpoint_id character varying(40),
    attempts_before integer DEFAULT 0 NOT NULL,
    replayed_at bigint
);
CREATE TABLE public.delivery_attempt (
    delivery_id character varying(40) NOT NULL,
    attempt_no integer NOT NULL,
    started_at bigint NOT NULL,
    latency_ms integer NOT NULL,
    status_code integer,
    error text,
    response_head text,
    retry_after_s integer
);
CREATE TABLE public.event (
    job_id character varying(40) NOT NULL,
    seq integer NOT NULL,
    type character varying(32) NOT NULL,
    data json NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE public.file (
    id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    purpose character varying(16) NOT NULL,
    filename text NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 character varying(64) NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint
);
CREATE TABLE public.gone_endpoint (
    tenant_id character varying(40) NOT NULL,
    url_sha256 character varying(64) NOT NULL,
    url text NOT NULL,
    gone_at bigint NOT NULL
);
CREATE TABLE public.holding (
    tenant_id character varying(40) NOT NULL,
    slot integer NOT NULL,
    stored_files bigint DEFAULT 0 NOT NULL,
    stored_bytes bigint DEFAULT 0 NOT NULL,
    online_requests bigint DEFAULT 0 NOT NULL,
    bulk_jobs bigint DEFAULT 0 NOT NULL,
    bulk_rows bigint DEFAULT 0 NOT NULL,
    queued_tokens bigint DEFAULT 0 NOT NULL
);
CREATE TABLE public.idempotency (
    tenant_id character varying(40) NOT NULL,
    key character varying(255) NOT NULL,
    fingerprint character varying(64) NOT NULL,
    job_id character varying(40) NOT NULL,
    status_code integer NOT NULL,
    body json NOT NULL,
    expires_at bigint NOT NULL
);
CREATE TABLE public.job (
    id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    kind character varying(8) NOT NULL,
    face character varying(8) NOT NULL,
    state character varying(12) NOT NULL,
    priority character varying(12) NOT NULL,
    priority_rank integer NOT NULL,
    model text,
    spec json NOT NULL,
    fingerprint character varying(64) NOT NULL,
    rows_total bigint,
    rows_estimated bigint,
    rows_succeeded bigint NOT NULL,
    rows_failed bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    created_at bigint NOT NULL,
    deadline_at bigint NOT NULL,
    runtime_deadline_at bigint,
    planned_at bigint,
    started_at bigint,
    finalizing_at bigint,
    finished_at bigint,
    stop_reason character varying(12),
    stop_requested_at bigint,
    errors json,
    output_file_id character varying(40),
    error_file_id character varying(40),
    webhook_secret bytea,
    event_seq integer NOT NULL,
    capacity character varying(12) DEFAULT 'any'::character varying NOT NULL,
    tokens_redone bigint DEFAULT 0 NOT NULL,
    planning_attempts integer DEFAULT 0 NOT NULL,
    name character varying(100),
    paused_at bigint,
    deleted_at bigint,
    results_deleted_at bigint,
    events_deleted_at bigint,
    retry_of character varying(40),
    tokens_queued bigint DEFAULT 0 NOT NULL,
    plan_page integer DEFAULT 0 NOT NULL,
    plan_cursor json,
    output_place character varying(64),
    output_upload json,
    rows_reused bigint DEFAULT 0 NOT NULL,
    output_problem json,
    shards_ended integer DEFAULT 0 NOT NULL,
    parts_written integer DEFAULT 0 NOT NULL,
    pool character varying(63),
    traceparent character varying(55),
    worker_ms_spot bigint DEFAULT 0 NOT NULL,
    worker_ms_on_demand bigint DEFAULT 0 NOT NULL,
    input_fault json,
    current_problem json,
    problem_changes integer DEFAULT 0 NOT NULL,
    stored_bytes bigint DEFAULT 0 NOT NULL,
    rows_unlisted bigint DEFAULT 0 NOT NULL
);
CREATE TABLE public.leadership (
    duty character varying(32) NOT NULL,
    leader_id character varying(40) NOT NULL,
    term integer NOT NULL,
    expires_at bigint NOT NULL,
    stalled character varying(64)
);
CREATE TABLE public.model (
    id character varying(255) NOT NULL,
    kind character varying(32) NOT NULL,
    context_length integer,
    revision text NOT NULL,
    "position" integer NOT NULL,
    created_at bigint NOT NULL,
    dtype character varying(16),
    dimensions integer,
    output_sizes json
);
CREATE TABLE public.outbox (
    id bigint NOT NULL,
    kind character varying(8) NOT NULL,
    shard_id character varying(40),
    priority_rank integer NOT NULL,
    created_at bigint NOT NULL
);
CREATE SEQUENCE public.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.outbox_id_seq OWNED BY public.outbox.id;
CREATE TABLE public.output_part (
    id character varying(40) NOT NULL,
    job_id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    first_shard integer NOT NULL,
    last_shard integer NOT NULL,
    state character varying(8) NOT NULL,
    term integer NOT NULL,
    owner character varying(40),
    lease_expires_at bigint,
    not_before bigint,
    attempts integer NOT NULL,
    uploads json,
    files json,
    problem json,
    rows bigint NOT NULL,
    succeeded bigint NOT NULL,
    failed bigint NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE public.page_session (
    token_sha256 character varying(64) NOT NULL,
    key_id character varying(16) NOT NULL,
    created_at bigint NOT NULL,
    used_at bigint NOT NULL
);
CREATE TABLE public.request (
    shard_id character varying(40) NOT NULL,
    body json NOT NULL
);
CREATE TABLE public.result (
    shard_id character varying(40) NOT NULL,
    status_code integer NOT NULL,
    body json NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL
);
CREATE TABLE public.row_crash (
    shard_id character varying(40) NOT NULL,
    "row" bigint NOT NULL,
    crashes integer NOT NULL,
    explained integer NOT NULL,
    last_cause character varying(24) NOT NULL,
    lost_before bigint
);
CREATE TABLE public.segment (
    id bigint NOT NULL,
    job_id character varying(40) NOT NULL,
    shard_id character varying(40) NOT NULL,
    term integer NOT NULL,
    seq integer NOT NULL,
    key text NOT NULL,
    succeeded integer NOT NULL,
    failed integer NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 character varying(64) NOT NULL,
    output_bytes bigint,
    reused integer DEFAULT 0 NOT NULL,
    earlier integer DEFAULT 0 NOT NULL
);
CREATE SEQUENCE public.segment_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.segment_id_seq OWNED BY public.segment.id;
CREATE TABLE public.service_figure (
    at bigint NOT NULL,
    figures json NOT NULL
);
CREATE TABLE public.shard (
    id character varying(40) NOT NULL,
    job_id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    kind character varying(8) NOT NULL,
    model text NOT NULL,
    shard_no integer NOT NULL,
    state character varying(8) NOT NULL,
    term integer NOT NULL,
    worker_id character varying(40),
    lease_until bigint,
    not_before bigint,
    attempts integer NOT NULL,
    crash_count integer NOT NULL,
    enqueued_at bigint NOT NULL,
    signalled_at bigint,
    rows_done bigint NOT NULL,
    rows_total bigint,
    rows_estimated bigint,
    first_row bigint,
    uri text NOT NULL,
    format character varying(16) NOT NULL,
    start bigint NOT NULL,
    "end" bigint,
    carry_over_key text,
    capacity character varying(12) DEFAULT 'any'::character varying NOT NULL,
    source_etag text,
    tokens_in_flight bigint DEFAULT 0 NOT NULL,
    faults integer DEFAULT 0 NOT NULL,
    suspects json,
    is_isolating boolean DEFAULT false NOT NULL,
    attempts_before integer DEFAULT 0 NOT NULL,
    part_first_shard integer,
    result_bytes bigint DEFAULT 0 NOT NULL,
    objects json,
    interruption json,
    fault json
);
CREATE TABLE public.tenant (
    id character varying(40) NOT NULL,
    description text NOT NULL,
    created_at bigint NOT NULL,
    disabled_at bigint,
    deleted_at bigint,
    priority_ceiling character varying(12) DEFAULT 'interactive'::character varying NOT NULL,
    quotas json
);
CREATE TABLE public.tenant_secret (
    tenant_id character varying(40) NOT NULL,
    webhook_secret bytea NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE public.upload (
    id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    purpose character varying(16) NOT NULL,
    filename text NOT NULL,
    size_bytes bigint NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    file_expires_after_s integer,
    status character varying(12) NOT NULL,
    file_id character varying(40)
);
CREATE TABLE public.upload_part (
    id character varying(40) NOT NULL,
    upload_id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 character varying(64) NOT NULL,
    created_at bigint NOT NULL
);
CREATE TABLE public.usage (
    tenant_id character varying(40) NOT NULL,
    day character varying(10) NOT NULL,
    model text NOT NULL,
    succeeded bigint NOT NULL,
    failed bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL
);
CREATE TABLE public.webhook_endpoint (
    id character varying(40) NOT NULL,
    tenant_id character varying(40) NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    event_types json NOT NULL,
    secret bytea NOT NULL,
    secret_hint character varying(16) NOT NULL,
    previous_secret bytea,
    previous_secret_until bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    failing_since bigint,
    disabled_at bigint,
    disabled_reason character varying(16)
);
CREATE TABLE public.worker (
    id character varying(40) NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    state character varying(12) NOT NULL,
    models json NOT NULL,
    started_at bigint NOT NULL,
    heartbeat_at bigint NOT NULL,
    capacity character varying(12) DEFAULT 'on_demand'::character varying NOT NULL,
    drain_requested_at bigint,
    ended_at bigint,
    ended_cause character varying(24),
    lost_at bigint,
    warm_models json,
    figures json,
    pools json,
    notice_kind character varying(16),
    notice_at bigint,
    notice_ends_at bigint
);
ALTER TABLE ONLY public.audit ALTER COLUMN id SET DEFAULT nextval('public.audit_id_seq'::regclass);
ALTER TABLE ONLY public.deletion ALTER COLUMN id SET DEFAULT nextval('public.deletion_id_seq'::regclass);
ALTER TABLE ONLY public.outbox ALTER COLUMN id SET DEFAULT nextval('public.outbox_id_seq'::regclass);
ALTER TABLE ONLY public.segment ALTER COLUMN id SET DEFAULT nextval('public.segment_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0046');
INSERT INTO public.api_key VALUES ('g41mokbx', 'default', 'laptop', 'a43baf16af840adbc8f630f12d471a96b624833d252f51ca000725d416dfeb82', 'C5Ah', 1769902200000, NULL, NULL, 'read,submit', NULL);
INSERT INTO public.delivery VALUES ('dlv_0hl0378uqfgrqwqi9l8o622l', 'evt_bf5umksjy1ho14y3psjxirgy', 'default', 'job_ek4xd8iqmyehdbr49o6g30gr', 'job.succeeded', 'https://receiver.example/hook', '{"id":"evt_bf5umksjy1ho14y3psjxirgy","object":"event","created_at":1769902200,"type":"job.succeeded","data":{"id":"job_ek4xd8iqmyehdbr49o6g30gr","counts":{"total":null,"succeeded":0,"failed":0}}}', 'pending', 0, 1769902200000, 1769902200000, NULL, NULL, 0, NULL);
INSERT INTO public.event VALUES ('job_ek4xd8iqmyehdbr49o6g30gr', 1, 'job.queued', '{"status": "queued", "counts": {"total": null, "succeeded": 0, "failed": 0}}', 1769902200000);
INSERT INTO public.event VALUES ('job_ek4xd8iqmyehdbr49o6g30gr', 2, 'job.planned', '{"shards": 2, "rows_total": null}', 1769902200000);
INSERT INTO public.event VALUES ('job_ek4xd8iqmyehdbr49o6g30gr', 3, 'job.running', '{"status": "running", "counts": {"total": null, "succeeded": 0, "failed": 0}}', 1769902200000);
INSERT INTO public.event VALUES ('job_ek4xd8iqmyehdbr49o6g30gr', 4, 'job.progress', '{"counts": {"total": null, "succeeded": 4, "failed": 0}}', 1769902200000);
INSERT INTO public.event VALUES ('job_rodotzqe7gl3lssip6o5dnsz', 1, 'job.queued', '{"status": "queued", "counts": {"total": null, "succeeded": 0, "failed": 0}}', 1769902200000);
INSERT INTO public.file VALUES ('file-ifgd3f4d7i3urk4nw6sqjcvw', 'default', 'batch', 'requests.jsonl', 1234, 'ec72420df5dfbdce4111f715c96338df3b7cb75f58e478d2449c9720e560de8c', 1769902200000, NULL);
INSERT INTO public.holding VALUES ('default', 2, 0, 0, 0, 1, 0, 0);
INSERT INTO public.holding VALUES ('default', 5, 0, 0, 0, 0, -4, 0);
INSERT INTO public.holding VALUES ('default', 0, 0, 0, 1, 0, 0, 0);
INSERT INTO public.holding VALUES ('default', 4, 1, 1234, 0, 0, 0, 0);
INSERT INTO public.job VALUES ('job_ek4xd8iqmyehdbr49o6g30gr', 'default', 'bulk', 'native', 'running', 'standard', 1, 'demo', '{"endpoint": "/v1/chat/completions", "completion_window_s": 86400, "input": "s3://bucket/in.jsonl", "output": "s3://bucket/out/3/", "format": "jsonl", "retry_on_interrupt": true, "capacity": "any", "reuse_sampled": false, "parts": {"part_bytes": 268435456, "part_rows": null, "keep_body": false, "embedding_dtype": "float32", "keep_columns": null}}', '328d73d129e6f9aba3e53f8009f4419286da533876c1e3df58e6925c84547489', NULL, NULL, 4, 0, 40, 20, 4, 1769902200000, 1769988600000, NULL, 1769902200000, 1769902200000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 4, 'any', 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1, NULL, '883e70c5e67df5ff54c230fb2c8084e6590426ffe12e628b69a8494b0a6086f9', NULL, 0, NULL, 1, 0, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 0);
INSERT INTO public.job VALUES ('job_rodotzqe7gl3lssip6o5dnsz', 'default', 'online', 'native', 'queued', 'interactive', 0, 'demo', '{"endpoint": "/v1/chat/completions", "completion_window_s": 600, "format": "jsonl", "retry_on_interrupt": true, "capacity": "any", "reuse_sampled": false, "parts": {"part_bytes": 268435456, "part_rows": null, "keep_body": false, "embedding_dtype": "float32", "keep_columns": null}}', '1b48e26121a2ff1d784dc45449089cb54dc29c9d76b74b435f7f5e90318df6c1', NULL, NULL, 0, 0, 0, 0, 0, 1769902200000, 1769902800000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, 'any', 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, NULL, 0, 0, NULL, NULL, 0, 0, NULL, NULL, 0, 0, 0);
INSERT INTO public.outbox VALUES (1, 'bulk', NULL, 1, 1769902200000);
INSERT INTO public.outbox VALUES (2, 'bulk', NULL, 1, 1769902200000);
INSERT INTO public.outbox VALUES (3, 'online', 'shard_vidf2fq58uq1bb22134dqx5p', 0, 1769902200000);
INSERT INTO public.request VALUES ('shard_vidf2fq58uq1bb22134dqx5p', '{"messages": []}');
INSERT INTO public.segment VALUES (1, 'job_ek4xd8iqmyehdbr49o6g30gr', 'shard_ug31nmql6zrrc2o4vh000000', 1, 0, 'segments/default/job_ek4xd8iqmyehdbr49o6g30gr/000000/t1-000000.arrow', 4, 0, 40, 20, 4, 400, '7f4b601a97ba9d3e74bcc1a8f73a12c41ecbbc1941a5509eab258fbbf508cdaa', NULL, 0, 0);
INSERT INTO public.shard VALUES ('shard_ug31nmql6zrrc2o4vh000001', 'job_ek4xd8iqmyehdbr49o6g30gr', 'default', 'bulk', 'demo', 1, 'queued', 0, NULL, NULL, NULL, 0, 0, 1769902200000, NULL, 0, NULL, NULL, NULL, 's3://bucket/in.jsonl', 'jsonl', 1000, 2000, NULL, 'any', NULL, 0, 0, NULL, false, 0, NULL, 0, NULL, NULL, NULL);
INSERT INTO public.shard VALUES ('shard_ug31nmql6zrrc2o4vh000000', 'job_ek4xd8iqmyehdbr49o6g30gr', 'default', 'bulk', 'demo', 0, 'done', 1, 'worker_1', NULL, NULL, 1, 0, 1769902200000, NULL, 4, 4, NULL, NULL, 's3://bucket/in.jsonl', 'jsonl', 0, 1000, NULL, 'any', NULL, 0, 0, NULL, false, 0, NULL, 400, NULL, NULL, NULL);
INSERT INTO public.shard VALUES ('shard_vidf2fq58uq1bb22134dqx5p', 'job_rodotzqe7gl3lssip6o5dnsz', 'default', 'online', 'demo', 0, 'queued', 0, NULL, NULL, NULL, 0, 0, 1769902200000, NULL, 0, 1, NULL, NULL, '', 'request', 0, NULL, NULL, 'any', NULL, 0, 0, NULL, false, 0, NULL, 0, NULL, NULL, NULL);
INSERT INTO public.usage VALUES ('default', '2026-01-31', 'demo', 4, 0, 40, 4, 20);
INSERT INTO public.webhook_endpoint VALUES ('whe_4hjepxd4zwsfl264g31bs6bl', 'default', 'pager', 'https://endpoint.example/hook', '["*"]', '\x656e63727970746564', 'whsec_…abc=', NULL, NULL, 1769902200000, 1769902200000, NULL, NULL, NULL);
INSERT INTO public.worker VALUES ('worker_1', 'gpu-1', 4711, 'ready', '["demo"]', 1769902200000, 1769902200000, 'on_demand', NULL, NULL, NULL, NULL, NULL, NULL, '[]', NULL, NULL, NULL);
SELECT pg_catalog.setval('public.audit_id_seq', 1, false);
SELECT pg_catalog.setval('public.deletion_id_seq', 1, false);
SELECT pg_catalog.setval('public.outbox_id_seq', 3, true);
SELECT pg_catalog.setval('public.segment_id_seq', 1, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT pk_api_key PRIMARY KEY (id);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT pk_audit PRIMARY KEY (id);
ALTER TABLE ONLY public.counter
    ADD CONSTRAINT pk_counter PRIMARY KEY (name);
ALTER TABLE ONLY public.dead_row
    ADD CONSTRAINT pk_dead_row PRIMARY KEY (id);
ALTER TABLE ONLY public.deletion
    ADD CONSTRAINT pk_deletion PRIMARY KEY (id);
ALTER TABLE ONLY public.delivery
    ADD CONSTRAINT pk_delivery PRIMARY KEY (id);
ALTER TABLE ONLY public.delivery_attempt
    ADD CONSTRAINT pk_delivery_attempt PRIMARY KEY (delivery_id, attempt_no);
ALTER TABLE ONLY public.event
    ADD CONSTRAINT pk_event PRIMARY KEY (job_id, seq);
ALTER TABLE ONLY public.file
    ADD CONSTRAINT pk_file PRIMARY KEY (id);
ALTER TABLE ONLY public.gone_endpoint
    ADD CONSTRAINT pk_gone_endpoint PRIMARY KEY (tenant_id, url_sha256);
ALTER TABLE ONLY public.holding
    ADD CONSTRAINT pk_holding PRIMARY KEY (tenant_id, slot);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT pk_idempotency PRIMARY KEY (tenant_id, key);
ALTER TABLE ONLY public.job
    ADD CONSTRAINT pk_job PRIMARY KEY (id);
ALTER TABLE ONLY public.leadership
    ADD CONSTRAINT pk_leadership PRIMARY KEY (duty);
ALTER TABLE ONLY public.model
    ADD CONSTRAINT pk_model PRIMARY KEY (id);
ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT pk_outbox PRIMARY KEY (id);
ALTER TABLE ONLY public.output_part
    ADD CONSTRAINT pk_output_part PRIMARY KEY (id);
ALTER TABLE ONLY public.page_session
    ADD CONSTRAINT pk_page_session PRIMARY KEY (token_sha256);
ALTER TABLE ONLY public.request
    ADD CONSTRAINT pk_request PRIMARY KEY (shard_id);
ALTER TABLE ONLY public.result
    ADD CONSTRAINT pk_result PRIMARY KEY (shard_id);
ALTER TABLE ONLY public.row_crash
    ADD CONSTRAINT pk_row_crash PRIMARY KEY (shard_id, "row");
ALTER TABLE ONLY public.segment
    ADD CONSTRAINT pk_segment PRIMARY KEY (id);
ALTER TABLE ONLY public.service_figure
    ADD CONSTRAINT pk_service_figure PRIMARY KEY (at);
ALTER TABLE ONLY public.shard
    ADD CONSTRAINT pk_shard PRIMARY KEY (id);
ALTER TABLE ONLY public.tenant
    ADD CONSTRAINT pk_tenant PRIMARY KEY (id);
ALTER TABLE ONLY public.tenant_secret
    ADD CONSTRAINT pk_tenant_secret PRIMARY KEY (tenant_id);
ALTER TABLE ONLY public.upload
    ADD CONSTRAINT pk_upload PRIMARY KEY (id);
ALTER TABLE ONLY public.upload_part
    ADD CONSTRAINT pk_upload_part PRIMARY KEY (id);
ALTER TABLE ONLY public.usage
    ADD CONSTRAINT pk_usage PRIMARY KEY (tenant_id, day, model);
ALTER TABLE ONLY public.webhook_endpoint
    ADD CONSTRAINT pk_webhook_endpoint PRIMARY KEY (id);
ALTER TABLE ONLY public.worker
    ADD CONSTRAINT pk_worker PRIMARY KEY (id);
ALTER TABLE ONLY public.dead_row
    ADD CONSTRAINT uq_dead_row_shard_id UNIQUE (shard_id, "row");
ALTER TABLE ONLY public.output_part
    ADD CONSTRAINT uq_output_part_job_id UNIQUE (job_id, first_shard);
ALTER TABLE ONLY public.segment
    ADD CONSTRAINT uq_segment_shard_id UNIQUE (shard_id, term, seq);
ALTER TABLE ONLY public.shard
    ADD CONSTRAINT uq_shard_job_id UNIQUE (job_id, shard_no);
CREATE INDEX ix_api_key_listing ON public.api_key USING btree (tenant_id, created_at, id);
CREATE INDEX ix_api_key_tenant_id ON public.api_key USING btree (tenant_id);
CREATE INDEX ix_audit_listing ON public.audit USING btree (tenant_id, id);
CREATE INDEX ix_dead_row_listing ON public.dead_row USING btree (tenant_id, state, died_at, id);
CREATE INDEX ix_dead_row_newest ON public.dead_row USING btree (tenant_id, died_at, id);
CREATE INDEX ix_dead_row_of_job ON public.dead_row USING btree (job_id, died_at, id);
CREATE INDEX ix_deletion_of_tenant ON public.deletion USING btree (tenant_id, id);
CREATE INDEX ix_delivery_due ON public.delivery USING btree (state, next_at, created_at);
CREATE INDEX ix_delivery_listing ON public.delivery USING btree (tenant_id, created_at, id);
CREATE INDEX ix_delivery_of_endpoint ON public.delivery USING btree (tenant_id, endpoint_id, created_at, id);
CREATE INDEX ix_delivery_of_endpoint_state ON public.delivery USING btree (tenant_id, endpoint_id, state, created_at, id);
CREATE INDEX ix_delivery_of_job ON public.delivery USING btree (job_id, tenant_id, created_at, id);
CREATE INDEX ix_delivery_of_state ON public.delivery USING btree (tenant_id, state, created_at, id);
CREATE INDEX ix_event_milestone ON public.event USING btree (job_id, seq) WHERE ((type)::text = ANY ((ARRAY['job.planned'::character varying, 'job.updated'::character varying, 'job.paused'::character varying, 'job.resumed'::character varying, 'job.stopping'::character varying, 'job.finalizing'::character varying, 'job.shard_lost'::character varying, 'job.shard_returned'::character varying, 'job.shard_resumed'::character varying, 'job.problem'::character varying])::text[]));
CREATE INDEX ix_file_expiry ON public.file USING btree (expires_at, id);
CREATE INDEX ix_file_listing ON public.file USING btree (tenant_id, created_at, id);
CREATE INDEX ix_idempotency_expires_at ON public.idempotency USING btree (expires_at);
CREATE INDEX ix_idempotency_of_job ON public.idempotency USING btree (job_id);
CREATE INDEX ix_job_active ON public.job USING btree (state, kind, priority_rank);
CREATE INDEX ix_job_batches ON public.job USING btree (tenant_id, kind, face, created_at, id) WHERE (((kind)::text = 'bulk'::text) AND ((face)::text = 'openai'::text));
CREATE INDEX ix_job_ended ON public.job USING btree (tenant_id, kind, finished_at, id) WHERE ((finished_at IS NOT NULL) AND (deleted_at IS NULL));
CREATE INDEX ix_job_listing ON public.job USING btree (tenant_id, kind, created_at, id, priority, model);
CREATE INDEX ix_job_newest ON public.job USING btree (tenant_id, created_at, id);
CREATE INDEX ix_job_of_model ON public.job USING btree (tenant_id, model, created_at, id, kind, priority);
CREATE INDEX ix_job_of_name ON public.job USING btree (tenant_id, name, created_at, id) WHERE (name IS NOT NULL);
CREATE INDEX ix_job_of_priority ON public.job USING btree (tenant_id, priority, created_at, id, kind, model);
CREATE INDEX ix_job_of_state ON public.job USING btree (tenant_id, state, created_at, id, kind, priority, model);
CREATE INDEX ix_job_online_unclaimed ON public.job USING btree (model, priority, capacity, created_at, deadline_at) WHERE (((kind)::text = 'online'::text) AND ((state)::text = 'queued'::text));
CREATE UNIQUE INDEX ix_job_output_place ON public.job USING btree (output_place) WHERE ((output_place IS NOT NULL) AND ((state)::text = ANY ((ARRAY['queued'::character varying, 'running'::character varying, 'finalizing'::character varying])::text[])));
CREATE INDEX ix_job_queue ON public.job USING btree (kind, priority_rank, created_at, state, paused_at) WHERE (((state)::text = ANY ((ARRAY['queued'::character varying, 'running'::character varying])::text[])) AND (paused_at IS NULL));
CREATE INDEX ix_job_repeat ON public.job USING btree (tenant_id, fingerprint, created_at, stored_bytes);
CREATE INDEX ix_job_retries ON public.job USING btree (retry_of, created_at) WHERE (retry_of IS NOT NULL);
CREATE INDEX ix_job_with_events ON public.job USING btree (tenant_id, kind, finished_at, id) WHERE ((finished_at IS NOT NULL) AND (events_deleted_at IS NULL));
CREATE INDEX ix_job_with_results ON public.job USING btree (tenant_id, kind, finished_at, id) WHERE ((finished_at IS NOT NULL) AND (results_deleted_at IS NULL));
CREATE INDEX ix_output_part_leased ON public.output_part USING btree (lease_expires_at, tenant_id) WHERE ((state)::text = 'leased'::text);
CREATE INDEX ix_output_part_of_job ON public.output_part USING btree (job_id, state, first_shard);
CREATE INDEX ix_output_part_problem ON public.output_part USING btree (job_id, not_before) WHERE (problem IS NOT NULL);
CREATE INDEX ix_output_part_uploads ON public.output_part USING btree (job_id) WHERE (uploads IS NOT NULL);
CREATE INDEX ix_page_session_of_key ON public.page_session USING btree (key_id, created_at);
CREATE INDEX ix_page_session_used ON public.page_session USING btree (used_at);
CREATE INDEX ix_segment_job ON public.segment USING btree (job_id, id);
CREATE INDEX ix_segment_with_failures ON public.segment USING btree (job_id, id) WHERE (failed > 0);
CREATE INDEX ix_shard_claim ON public.shard USING btree (job_id, state, shard_no);
CREATE INDEX ix_shard_fault ON public.shard USING btree (job_id, shard_no) WHERE (fault IS NOT NULL);
CREATE INDEX ix_shard_state ON public.shard USING btree (state, kind, tenant_id);
CREATE INDEX ix_shard_to_cut ON public.shard USING btree (job_id, shard_no) WHERE (((kind)::text = 'bulk'::text) AND (part_first_shard IS NULL) AND ((state)::text = ANY ((ARRAY['done'::character varying, 'stopped'::character varying, 'failed'::character varying])::text[])));
CREATE INDEX ix_shard_worker ON public.shard USING btree (worker_id, state);
CREATE INDEX ix_tenant_listing ON public.tenant USING btree (created_at, id);
CREATE INDEX ix_upload_due ON public.upload USING btree (status, expires_at);
CREATE INDEX ix_upload_part_upload_id ON public.upload_part USING btree (upload_id);
CREATE INDEX ix_upload_tenant ON public.upload USING btree (tenant_id, status, expires_at);
CREATE INDEX ix_webhook_endpoint_listing ON public.webhook_endpoint USING btree (tenant_id, created_at, id);
CREATE INDEX ix_worker_heard_of ON public.worker USING btree (heartbeat_at);
CREATE INDEX ix_worker_listing ON public.worker USING btree (state, started_at, id);
ALTER TABLE ONLY public.dead_row
    ADD CONSTRAINT fk_dead_row_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.dead_row
    ADD CONSTRAINT fk_dead_row_shard_id_shard FOREIGN KEY (shard_id) REFERENCES public.shard(id);
ALTER TABLE ONLY public.delivery_attempt
    ADD CONSTRAINT fk_delivery_attempt_delivery_id_delivery FOREIGN KEY (delivery_id) REFERENCES public.delivery(id);
ALTER TABLE ONLY public.delivery
    ADD CONSTRAINT fk_delivery_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.event
    ADD CONSTRAINT fk_event_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT fk_idempotency_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.output_part
    ADD CONSTRAINT fk_output_part_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.page_session
    ADD CONSTRAINT fk_page_session_key_id_api_key FOREIGN KEY (key_id) REFERENCES public.api_key(id);
ALTER TABLE ONLY public.request
    ADD CONSTRAINT fk_request_shard_id_shard FOREIGN KEY (shard_id) REFERENCES public.shard(id);
ALTER TABLE ONLY public.result
    ADD CONSTRAINT fk_result_shard_id_shard FOREIGN KEY (shard_id) REFERENCES public.shard(id);
ALTER TABLE ONLY public.row_crash
    ADD CONSTRAINT fk_row_crash_shard_id_shard FOREIGN KEY (shard_id) REFERENCES public.shard(id);
ALTER TABLE ONLY public.segment
    ADD CONSTRAINT fk_segment_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.segment
    ADD CONSTRAINT fk_segment_shard_id_shard FOREIGN KEY (shard_id) REFERENCES public.shard(id);
ALTER TABLE ONLY public.shard
    ADD CONSTRAINT fk_shard_job_id_job FOREIGN KEY (job_id) REFERENCES public.job(id);
ALTER TABLE ONLY public.upload_part
    ADD CONSTRAINT fk_upload_part_upload_id_upload FOREIGN KEY (upload_id) REFERENCES public.upload(id);
