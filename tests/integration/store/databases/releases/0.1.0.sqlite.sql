BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0046');
CREATE TABLE api_key (
	id VARCHAR(16) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	name TEXT NOT NULL, 
	key_sha256 VARCHAR(64) NOT NULL, 
	last4 VARCHAR(4) NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	revoked_at BIGINT, 
	scopes VARCHAR(64) DEFAULT 'read,submit' NOT NULL, 
	replaced_by VARCHAR(16), 
	CONSTRAINT pk_api_key PRIMARY KEY (id)
);
INSERT INTO "api_key" VALUES('9arjj8bs','default','laptop','bff1baa28b60400164247a97a0a2da776667f69964c20325013d5d0556e0aa3c','qxRo',1769902200000,NULL,NULL,'read,submit',NULL);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	actor TEXT NOT NULL, 
	action VARCHAR(32) NOT NULL, 
	tenant_id VARCHAR(40), 
	object_id TEXT, 
	details JSON NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
CREATE TABLE counter (
	name VARCHAR(64) NOT NULL, 
	value BIGINT NOT NULL, 
	CONSTRAINT pk_counter PRIMARY KEY (name)
);
CREATE TABLE dead_row (
	id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	job_id VARCHAR(40) NOT NULL, 
	shard_id VARCHAR(40) NOT NULL, 
	"row" BIGINT NOT NULL, 
	custom_id TEXT, 
	cause VARCHAR(24) NOT NULL, 
	crashes INTEGER NOT NULL, 
	worker_id VARCHAR(40), 
	died_at BIGINT NOT NULL, 
	state VARCHAR(12) NOT NULL, 
	decided_at BIGINT, 
	replay_job_id VARCHAR(40), 
	CONSTRAINT pk_dead_row PRIMARY KEY (id), 
	CONSTRAINT fk_dead_row_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_dead_row_shard_id_shard FOREIGN KEY(shard_id) REFERENCES shard (id), 
	CONSTRAINT uq_dead_row_shard_id UNIQUE (shard_id, "row")
);
CREATE TABLE deletion (
	id INTEGER NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	job_id VARCHAR(40) NOT NULL, 
	part VARCHAR(8) NOT NULL, 
	recorded_at BIGINT NOT NULL, 
	CONSTRAINT pk_deletion PRIMARY KEY (id)
);
CREATE TABLE delivery (
	id VARCHAR(40) NOT NULL, 
	event_id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	job_id VARCHAR(40) NOT NULL, 
	event_type VARCHAR(32) NOT NULL, 
	url TEXT NOT NULL, 
	body TEXT NOT NULL, 
	state VARCHAR(12) NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_at BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	delivered_at BIGINT, 
	endpoint_id VARCHAR(40), 
	attempts_before INTEGER DEFAULT 0 NOT NULL, 
	replayed_at BIGINT, 
	CONSTRAINT pk_delivery PRIMARY KEY (id), 
	CONSTRAINT fk_delivery_job_id_job FOREIGN KEY(job_id) REFERENCES job (id)
);
INSERT INTO "delivery" VALUES('dlv_1rr0x64e7qrx6uuaozgxs61u','evt_gq1gtcw9z894eukjcx7qhuyk','default','job_ybbb25ym8k2tcf7rzjrvohas','job.succeeded','https://receiver.example/hook','{"id":"evt_gq1gtcw9z894eukjcx7qhuyk","object":"event","created_at":1769902200,"type":"job.succeeded","data":{"id":"job_ybbb25ym8k2tcf7rzjrvohas","counts":{"total":null,"succeeded":0,"failed":0}}}','pending',0,1769902200000,1769902200000,NULL,NULL,0,NULL);
CREATE TABLE delivery_attempt (
	delivery_id VARCHAR(40) NOT NULL, 
	attempt_no INTEGER NOT NULL, 
	started_at BIGINT NOT NULL, 
	latency_ms INTEGER NOT NULL, 
	status_code INTEGER, 
	error TEXT, 
	response_head TEXT, 
	retry_after_s INTEGER, 
	CONSTRAINT pk_delivery_attempt PRIMARY KEY (delivery_id, attempt_no), 
	CONSTRAINT fk_delivery_attempt_delivery_id_delivery FOREIGN KEY(delivery_id) REFERENCES delivery (id)
);
CREATE TABLE event (
	job_id VARCHAR(40) NOT NULL, 
	seq INTEGER NOT NULL, 
	type VARCHAR(32) NOT NULL, 
	data JSON NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_event PRIMARY KEY (job_id, seq), 
	CONSTRAINT fk_event_job_id_job FOREIGN KEY(job_id) REFERENCES job (id)
);
INSERT INTO "event" VALUES('job_ybbb25ym8k2tcf7rzjrvohas',1,'job.queued','{"status": "queued", "counts": {"total": null, "succeeded": 0, "failed": 0}}',1769902200000);
INSERT INTO "event" VALUES('job_ybbb25ym8k2tcf7rzjrvohas',2,'job.planned','{"shards": 2, "rows_total": null}',1769902200000);
INSERT INTO "event" VALUES('job_ybbb25ym8k2tcf7rzjrvohas',3,'job.running','{"status": "running", "counts": {"total": null, "succeeded": 0, "failed": 0}}',1769902200000);
INSERT INTO "event" VALUES('job_ybbb25ym8k2tcf7rzjrvohas',4,'job.progress','{"counts": {"total": null, "succeeded": 4, "failed": 0}}',1769902200000);
INSERT INTO "event" VALUES('job_uu1d0xf6mrqofrt8gfyzrfzp',1,'job.queued','{"status": "queued", "counts": {"total": null, "succeeded": 0, "failed": 0}}',1769902200000);
CREATE TABLE file (
	id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	purpose VARCHAR(16) NOT NULL, 
	filename TEXT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	CONSTRAINT pk_file PRIMARY KEY (id)
);
INSERT INTO "file" VALUES('file-s1lvlf2vf8uubh6uzba9a658','default','batch','requests.jsonl',1234,'ec72420df5dfbdce4111f715c96338df3b7cb75f58e478d2449c9720e560de8c',1769902200000,NULL);
CREATE TABLE gone_endpoint (
	tenant_id VARCHAR(40) NOT NULL, 
	url_sha256 VARCHAR(64) NOT NULL, 
	url TEXT NOT NULL, 
	gone_at BIGINT NOT NULL, 
	CONSTRAINT pk_gone_endpoint PRIMARY KEY (tenant_id, url_sha256)
);
CREATE TABLE holding (
	tenant_id VARCHAR(40) NOT NULL, 
	slot INTEGER NOT NULL, 
	stored_files BIGINT DEFAULT 0 NOT NULL, 
	stored_bytes BIGINT DEFAULT 0 NOT NULL, 
	online_requests BIGINT DEFAULT 0 NOT NULL, 
	bulk_jobs BIGINT DEFAULT 0 NOT NULL, 
	bulk_rows BIGINT DEFAULT 0 NOT NULL, 
	queued_tokens BIGINT DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_holding PRIMARY KEY (tenant_id, slot)
);
INSERT INTO "holding" VALUES('default',0,1,1234,1,1,-4,0);
CREATE TABLE idempotency (
	tenant_id VARCHAR(40) NOT NULL, 
	"key" VARCHAR(255) NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	job_id VARCHAR(40) NOT NULL, 
	status_code INTEGER NOT NULL, 
	body JSON NOT NULL, 
	expires_at BIGINT NOT NULL, 
	CONSTRAINT pk_idempotency PRIMARY KEY (tenant_id, "key"), 
	CONSTRAINT fk_idempotency_job_id_job FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE job (
	id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	face VARCHAR(8) NOT NULL, 
	state VARCHAR(12) NOT NULL, 
	priority VARCHAR(12) NOT NULL, 
	priority_rank INTEGER NOT NULL, 
	model TEXT, 
	spec JSON NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	rows_total BIGINT, 
	rows_estimated BIGINT, 
	rows_succeeded BIGINT NOT NULL, 
	rows_failed BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	deadline_at BIGINT NOT NULL, 
	runtime_deadline_at BIGINT, 
	planned_at BIGINT, 
	started_at BIGINT, 
	finalizing_at BIGINT, 
	finished_at BIGINT, 
	stop_reason VARCHAR(12), 
	stop_requested_at BIGINT, 
	errors JSON, 
	output_file_id VARCHAR(40), 
	error_file_id VARCHAR(40), 
	webhook_secret BLOB, 
	event_seq INTEGER NOT NULL, 
	capacity VARCHAR(12) DEFAULT 'any' NOT NULL, 
	tokens_redone BIGINT DEFAULT 0 NOT NULL, 
	planning_attempts INTEGER DEFAULT 0 NOT NULL, 
	name VARCHAR(100), 
	paused_at BIGINT, 
	deleted_at BIGINT, 
	results_deleted_at BIGINT, 
	events_deleted_at BIGINT, 
	retry_of VARCHAR(40), 
	tokens_queued BIGINT DEFAULT 0 NOT NULL, 
	plan_page INTEGER DEFAULT 0 NOT NULL, 
	plan_cursor JSON, 
	output_place VARCHAR(64), 
	output_upload JSON, 
	rows_reused BIGINT DEFAULT 0 NOT NULL, 
	output_problem JSON, 
	shards_ended INTEGER DEFAULT 0 NOT NULL, 
	parts_written INTEGER DEFAULT 0 NOT NULL, 
	pool VARCHAR(63), 
	traceparent VARCHAR(55), 
	worker_ms_spot BIGINT DEFAULT 0 NOT NULL, 
	worker_ms_on_demand BIGINT DEFAULT 0 NOT NULL, 
	input_fault JSON, 
	current_problem JSON, 
	problem_changes INTEGER DEFAULT 0 NOT NULL, 
	stored_bytes BIGINT DEFAULT 0 NOT NULL, 
	rows_unlisted BIGINT DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_job PRIMARY KEY (id)
);
INSERT INTO "job" VALUES('job_ybbb25ym8k2tcf7rzjrvohas','default','bulk','native','running','standard',1,'demo','{"endpoint": "/v1/chat/completions", "completion_window_s": 86400, "input": "s3://bucket/in.jsonl", "output": "s3://bucket/out/0/", "format": "jsonl", "retry_on_interrupt": true, "capacity": "any", "reuse_sampled": false, "parts": {"part_bytes": 268435456, "part_rows": null, "keep_body": false, "embedding_dtype": "float32", "keep_columns": null}}','08597b7fc3e55b32ea0373f1066b77edd36aced4052d7659b8fbc19bd24fcaf9',NULL,NULL,4,0,40,20,4,1769902200000,1769988600000,NULL,1769902200000,1769902200000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,4,'any',0,0,NULL,NULL,NULL,NULL,NULL,NULL,0,1,NULL,'e21ca503b4dbb64f1e9360113b15b5c0dca3e812ef49adca7a278a8802139971',NULL,0,NULL,1,0,NULL,NULL,0,0,NULL,NULL,0,0,0);
INSERT INTO "job" VALUES('job_uu1d0xf6mrqofrt8gfyzrfzp','default','online','native','queued','interactive',0,'demo','{"endpoint": "/v1/chat/completions", "completion_window_s": 600, "format": "jsonl", "retry_on_interrupt": true, "capacity": "any", "reuse_sampled": false, "parts": {"part_bytes": 268435456, "part_rows": null, "keep_body": false, "embedding_dtype": "float32", "keep_columns": null}}','f535339f1ac96d40dae71c1cf36d705d88dc7ffb9364ff66e75c7acbe885a84a',NULL,NULL,0,0,0,0,0,1769902200000,1769902800000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,'any',0,0,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,0,NULL,0,0,NULL,NULL,0,0,NULL,NULL,0,0,0);
CREATE TABLE leadership (
	duty VARCHAR(32) NOT NULL, 
	leader_id VARCHAR(40) NOT NULL, 
	term INTEGER NOT NULL, 
	expires_at BIGINT NOT NULL, 
	stalled VARCHAR(64), 
	CONSTRAINT pk_leadership PRIMARY KEY (duty)
);
CREATE TABLE model (
	id VARCHAR(255) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	context_length INTEGER, 
	revision TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	dtype VARCHAR(16), 
	dimensions INTEGER, 
	output_sizes JSON, 
	CONSTRAINT pk_model PRIMARY KEY (id)
);
CREATE TABLE outbox (
	id INTEGER NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	shard_id VARCHAR(40), 
	priority_rank INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_outbox PRIMARY KEY (id)
);
INSERT INTO "outbox" VALUES(1,'bulk',NULL,1,1769902200000);
INSERT INTO "outbox" VALUES(2,'bulk',NULL,1,1769902200000);
INSERT INTO "outbox" VALUES(3,'online','shard_bo05hw5uafe3p8bmyel95htb',0,1769902200000);
CREATE TABLE output_part (
	id VARCHAR(40) NOT NULL, 
	job_id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	first_shard INTEGER NOT NULL, 
	last_shard INTEGER NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	term INTEGER NOT NULL, 
	owner VARCHAR(40), 
	lease_expires_at BIGINT, 
	not_before BIGINT, 
	attempts INTEGER NOT NULL, 
	uploads JSON, 
	files JSON, 
	problem JSON, 
	rows BIGINT NOT NULL, 
	succeeded BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_output_part PRIMARY KEY (id), 
	CONSTRAINT fk_output_part_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT uq_output_part_job_id UNIQUE (job_id, first_shard)
);
CREATE TABLE page_session (
	token_sha256 VARCHAR(64) NOT NULL, 
	key_id VARCHAR(16) NOT NULL, 
	created_at BIGINT NOT NULL, 
	used_at BIGINT NOT NULL, 
	CONSTRAINT pk_page_session PRIMARY KEY (token_sha256), 
	CONSTRAINT fk_page_session_key_id_api_key FOREIGN KEY(key_id) REFERENCES api_key (id)
);
CREATE TABLE request (
	shard_id VARCHAR(40) NOT NULL, 
	body JSON NOT NULL, 
	CONSTRAINT pk_request PRIMARY KEY (shard_id), 
	CONSTRAINT fk_request_shard_id_shard FOREIGN KEY(shard_id) REFERENCES shard (id)
);
INSERT INTO "request" VALUES('shard_bo05hw5uafe3p8bmyel95htb','{"messages": []}');
CREATE TABLE result (
	shard_id VARCHAR(40) NOT NULL, 
	status_code INTEGER NOT NULL, 
	body JSON NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	CONSTRAINT pk_result PRIMARY KEY (shard_id), 
	CONSTRAINT fk_result_shard_id_shard FOREIGN KEY(shard_id) REFERENCES shard (id)
);
CREATE TABLE row_crash (
	shard_id VARCHAR(40) NOT NULL, 
	"row" BIGINT NOT NULL, 
	crashes INTEGER NOT NULL, 
	explained INTEGER NOT NULL, 
	last_cause VARCHAR(24) NOT NULL, 
	lost_before BIGINT, 
	CONSTRAINT pk_row_crash PRIMARY KEY (shard_id, "row"), 
	CONSTRAINT fk_row_crash_shard_id_shard FOREIGN KEY(shard_id) REFERENCES shard (id)
);
CREATE TABLE segment (
	id INTEGER NOT NULL, 
	job_id VARCHAR(40) NOT NULL, 
	shard_id VARCHAR(40) NOT NULL, 
	term INTEGER NOT NULL, 
	seq INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	succeeded INTEGER NOT NULL, 
	failed INTEGER NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	output_bytes BIGINT, 
	reused INTEGER DEFAULT 0 NOT NULL, 
	earlier INTEGER DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_segment PRIMARY KEY (id), 
	CONSTRAINT fk_segment_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT fk_segment_shard_id_shard FOREIGN KEY(shard_id) REFERENCES shard (id), 
	CONSTRAINT uq_segment_shard_id UNIQUE (shard_id, term, seq)
);
INSERT INTO "segment" VALUES(1,'job_ybbb25ym8k2tcf7rzjrvohas','shard_04e9rg5x8h0ss3id6b000000',1,0,'segments/default/job_ybbb25ym8k2tcf7rzjrvohas/000000/t1-000000.arrow',4,0,40,20,4,400,'f114aa447410a6a4a99dd7946b04eda97d0287b166bce52108ea652f60096021',NULL,0,0);
CREATE TABLE service_figure (
	at BIGINT NOT NULL, 
	figures JSON NOT NULL, 
	CONSTRAINT pk_service_figure PRIMARY KEY (at)
);
CREATE TABLE shard (
	id VARCHAR(40) NOT NULL, 
	job_id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	model TEXT NOT NULL, 
	shard_no INTEGER NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	term INTEGER NOT NULL, 
	worker_id VARCHAR(40), 
	lease_until BIGINT, 
	not_before BIGINT, 
	attempts INTEGER NOT NULL, 
	crash_count INTEGER NOT NULL, 
	enqueued_at BIGINT NOT NULL, 
	signalled_at BIGINT, 
	rows_done BIGINT NOT NULL, 
	rows_total BIGINT, 
	rows_estimated BIGINT, 
	first_row BIGINT, 
	uri TEXT NOT NULL, 
	format VARCHAR(16) NOT NULL, 
	start BIGINT NOT NULL, 
	"end" BIGINT, 
	carry_over_key TEXT, 
	capacity VARCHAR(12) DEFAULT 'any' NOT NULL, 
	source_etag TEXT, 
	tokens_in_flight BIGINT DEFAULT 0 NOT NULL, 
	faults INTEGER DEFAULT 0 NOT NULL, 
	suspects JSON, 
	is_isolating BOOLEAN DEFAULT 0 NOT NULL, 
	attempts_before INTEGER DEFAULT 0 NOT NULL, 
	part_first_shard INTEGER, 
	result_bytes BIGINT DEFAULT 0 NOT NULL, 
	objects JSON, 
	interruption JSON, 
	fault JSON, 
	CONSTRAINT pk_shard PRIMARY KEY (id), 
	CONSTRAINT fk_shard_job_id_job FOREIGN KEY(job_id) REFERENCES job (id), 
	CONSTRAINT uq_shard_job_id UNIQUE (job_id, shard_no)
);
INSERT INTO "shard" VALUES('shard_04e9rg5x8h0ss3id6b000000','job_ybbb25ym8k2tcf7rzjrvohas','default','bulk','demo',0,'done',1,'worker_1',NULL,NULL,1,0,1769902200000,NULL,4,4,NULL,NULL,'s3://bucket/in.jsonl','jsonl',0,1000,NULL,'any',NULL,0,0,NULL,0,0,NULL,400,NULL,NULL,NULL);
INSERT INTO "shard" VALUES('shard_04e9rg5x8h0ss3id6b000001','job_ybbb25ym8k2tcf7rzjrvohas','default','bulk','demo',1,'queued',0,NULL,NULL,NULL,0,0,1769902200000,NULL,0,NULL,NULL,NULL,'s3://bucket/in.jsonl','jsonl',1000,2000,NULL,'any',NULL,0,0,NULL,0,0,NULL,0,NULL,NULL,NULL);
INSERT INTO "shard" VALUES('shard_bo05hw5uafe3p8bmyel95htb','job_uu1d0xf6mrqofrt8gfyzrfzp','default','online','demo',0,'queued',0,NULL,NULL,NULL,0,0,1769902200000,NULL,0,1,NULL,NULL,'','request',0,NULL,NULL,'any',NULL,0,0,NULL,0,0,NULL,0,NULL,NULL,NULL);
CREATE TABLE tenant (
	id VARCHAR(40) NOT NULL, 
	description TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	disabled_at BIGINT, 
	deleted_at BIGINT, 
	priority_ceiling VARCHAR(12) DEFAULT 'interactive' NOT NULL, 
	quotas JSON, 
	CONSTRAINT pk_tenant PRIMARY KEY (id)
);
CREATE TABLE tenant_secret (
	tenant_id VARCHAR(40) NOT NULL, 
	webhook_secret BLOB NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_tenant_secret PRIMARY KEY (tenant_id)
);
CREATE TABLE upload (
	id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	purpose VARCHAR(16) NOT NULL, 
	filename TEXT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	file_expires_after_s INTEGER, 
	status VARCHAR(12) NOT NULL, 
	file_id VARCHAR(40), 
	CONSTRAINT pk_upload PRIMARY KEY (id)
);
CREATE TABLE upload_part (
	id VARCHAR(40) NOT NULL, 
	upload_id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_upload_part PRIMARY KEY (id), 
	CONSTRAINT fk_upload_part_upload_id_upload FOREIGN KEY(upload_id) REFERENCES upload (id)
);
CREATE TABLE usage (
	tenant_id VARCHAR(40) NOT NULL, 
	day VARCHAR(10) NOT NULL, 
	model TEXT NOT NULL, 
	succeeded BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	CONSTRAINT pk_usage PRIMARY KEY (tenant_id, day, model)
);
INSERT INTO "usage" VALUES('default','2026-01-31','demo',4,0,40,4,20);
CREATE TABLE webhook_endpoint (
	id VARCHAR(40) NOT NULL, 
	tenant_id VARCHAR(40) NOT NULL, 
	name TEXT NOT NULL, 
	url TEXT NOT NULL, 
	event_types JSON NOT NULL, 
	secret BLOB NOT NULL, 
	secret_hint VARCHAR(16) NOT NULL, 
	previous_secret BLOB, 
	previous_secret_until BIGINT, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	failing_since BIGINT, 
	disabled_at BIGINT, 
	disabled_reason VARCHAR(16), 
	CONSTRAINT pk_webhook_endpoint PRIMARY KEY (id)
);
INSERT INTO "webhook_endpoint" VALUES('whe_t7t09myv9400ims6feyt5czz','default','pager','https://endpoint.example/hook','["*"]',X'656E63727970746564','whsec_…abc=',NULL,NULL,1769902200000,1769902200000,NULL,NULL,NULL);
CREATE TABLE worker (
	id VARCHAR(40) NOT NULL, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	state VARCHAR(12) NOT NULL, 
	models JSON NOT NULL, 
	started_at BIGINT NOT NULL, 
	heartbeat_at BIGINT NOT NULL, 
	capacity VARCHAR(12) DEFAULT 'on_demand' NOT NULL, 
	drain_requested_at BIGINT, 
	ended_at BIGINT, 
	ended_cause VARCHAR(24), 
	lost_at BIGINT, 
	warm_models JSON, 
	figures JSON, 
	pools JSON, 
	notice_kind VARCHAR(16), 
	notice_at BIGINT, 
	notice_ends_at BIGINT, 
	CONSTRAINT pk_worker PRIMARY KEY (id)
);
INSERT INTO "worker" VALUES('worker_1','gpu-1',4711,'ready','["demo"]',1769902200000,1769902200000,'on_demand',NULL,NULL,NULL,NULL,NULL,NULL,'[]',NULL,NULL,NULL);
CREATE INDEX ix_api_key_listing ON api_key (tenant_id, created_at, id);
CREATE INDEX ix_api_key_tenant_id ON api_key (tenant_id);
CREATE INDEX ix_audit_listing ON audit (tenant_id, id);
CREATE INDEX ix_deletion_of_tenant ON deletion (tenant_id, id);
CREATE INDEX ix_file_expiry ON file (expires_at, id);
CREATE INDEX ix_file_listing ON file (tenant_id, created_at, id);
CREATE INDEX ix_job_active ON job (state, kind, priority_rank);
CREATE INDEX ix_job_batches ON job (tenant_id, kind, face, created_at, id) WHERE kind = 'bulk' AND face = 'openai';
CREATE INDEX ix_job_ended ON job (tenant_id, kind, finished_at, id) WHERE finished_at IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX ix_job_listing ON job (tenant_id, kind, created_at, id, priority, model);
CREATE INDEX ix_job_newest ON job (tenant_id, created_at, id);
CREATE INDEX ix_job_of_model ON job (tenant_id, model, created_at, id, kind, priority);
CREATE INDEX ix_job_of_name ON job (tenant_id, name, created_at, id) WHERE name IS NOT NULL;
CREATE INDEX ix_job_of_priority ON job (tenant_id, priority, created_at, id, kind, model);
CREATE INDEX ix_job_of_state ON job (tenant_id, state, created_at, id, kind, priority, model);
CREATE INDEX ix_job_online_unclaimed ON job (model, priority, capacity, created_at, deadline_at) WHERE kind = 'online' AND state = 'queued';
CREATE UNIQUE INDEX ix_job_output_place ON job (output_place) WHERE output_place IS NOT NULL AND state IN ('queued', 'running', 'finalizing');
CREATE INDEX ix_job_queue ON job (kind, priority_rank, created_at, state, paused_at) WHERE state IN ('queued', 'running') AND paused_at IS NULL;
CREATE INDEX ix_job_repeat ON job (tenant_id, fingerprint, created_at, stored_bytes);
CREATE INDEX ix_job_retries ON job (retry_of, created_at) WHERE retry_of IS NOT NULL;
CREATE INDEX ix_job_with_events ON job (tenant_id, kind, finished_at, id) WHERE finished_at IS NOT NULL AND events_deleted_at IS NULL;
CREATE INDEX ix_job_with_results ON job (tenant_id, kind, finished_at, id) WHERE finished_at IS NOT NULL AND results_deleted_at IS NULL;
CREATE INDEX ix_tenant_listing ON tenant (created_at, id);
CREATE INDEX ix_upload_due ON upload (status, expires_at);
CREATE INDEX ix_upload_tenant ON upload (tenant_id, status, expires_at);
CREATE INDEX ix_webhook_endpoint_listing ON webhook_endpoint (tenant_id, created_at, id);
CREATE INDEX ix_worker_heard_of ON worker (heartbeat_at);
CREATE INDEX ix_worker_listing ON worker (state, started_at, id);
CREATE INDEX ix_delivery_due ON delivery (state, next_at, created_at);
CREATE INDEX ix_delivery_listing ON delivery (tenant_id, created_at, id);
CREATE INDEX ix_delivery_of_endpoint ON delivery (tenant_id, endpoint_id, created_at, id);
CREATE INDEX ix_delivery_of_endpoint_state ON delivery (tenant_id, endpoint_id, state, created_at, id);
CREATE INDEX ix_delivery_of_job ON delivery (job_id, tenant_id, created_at, id);
CREATE INDEX ix_delivery_of_state ON delivery (tenant_id, state, created_at, id);
CREATE INDEX ix_event_milestone ON event (job_id, seq) WHERE type IN ('job.planned', 'job.updated', 'job.paused', 'job.resumed', 'job.stopping', 'job.finalizing', 'job.shard_lost', 'job.shard_returned', 'job.shard_resumed', 'job.problem');
CREATE INDEX ix_idempotency_expires_at ON idempotency (expires_at);
CREATE INDEX ix_idempotency_of_job ON idempotency (job_id);
CREATE INDEX ix_output_part_leased ON output_part (lease_expires_at, tenant_id) WHERE state = 'leased';
CREATE INDEX ix_output_part_of_job ON output_part (job_id, state, first_shard);
CREATE INDEX ix_output_part_problem ON output_part (job_id, not_before) WHERE problem IS NOT NULL;
CREATE INDEX ix_output_part_uploads ON output_part (job_id) WHERE uploads IS NOT NULL;
CREATE INDEX ix_page_session_of_key ON page_session (key_id, created_at);
CREATE INDEX ix_page_session_used ON page_session (used_at);
CREATE INDEX ix_shard_claim ON shard (job_id, state, shard_no);
CREATE INDEX ix_shard_fault ON shard (job_id, shard_no) WHERE fault IS NOT NULL;
CREATE INDEX ix_shard_state ON shard (state, kind, tenant_id);
CREATE INDEX ix_shard_to_cut ON shard (job_id, shard_no) WHERE kind = 'bulk' AND part_first_shard IS NULL AND state IN ('done', 'stopped', 'failed');
CREATE INDEX ix_shard_worker ON shard (worker_id, state);
CREATE INDEX ix_upload_part_upload_id ON upload_part (upload_id);
CREATE INDEX ix_dead_row_listing ON dead_row (tenant_id, state, died_at, id);
CREATE INDEX ix_dead_row_newest ON dead_row (tenant_id, died_at, id);
CREATE INDEX ix_dead_row_of_job ON dead_row (job_id, died_at, id);
CREATE INDEX ix_segment_job ON segment (job_id, id);
CREATE INDEX ix_segment_with_failures ON segment (job_id, id) WHERE failed > 0;
COMMIT;
