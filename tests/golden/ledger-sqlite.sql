PRAGMA user_version = 0;
BEGIN TRANSACTION;
CREATE TABLE accounts (
	account_id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	parent_id VARCHAR, 
	name VARCHAR NOT NULL, 
	limits JSON, 
	created_at DATETIME NOT NULL, 
	blocked_at DATETIME, 
	revision BIGINT NOT NULL, 
	CONSTRAINT pk_accounts PRIMARY KEY (account_id), 
	CONSTRAINT uq_accounts_revision UNIQUE (revision)
);
INSERT INTO "accounts" VALUES('org_default','organization',NULL,'default',NULL,'2026-11-22 14:41:28.817454',NULL,1);
INSERT INTO "accounts" VALUES('proj_default','project','org_default','default',NULL,'2026-11-22 14:41:28.817454',NULL,2);
INSERT INTO "accounts" VALUES('org_golden','organization',NULL,'Größe AG','{"budget_usd":7000000000000,"budget_window":"none","prepaid":true}','2026-10-26 07:35:01.250000',NULL,3);
INSERT INTO "accounts" VALUES('proj_golden','project','org_golden','ops','{"budget_usd":1,"budget_window":"4w","parallel":9}','2026-10-26 07:35:02.250000',NULL,4);
INSERT INTO "accounts" VALUES('proj_blocked','project','org_default','old',NULL,'2026-10-26 07:35:03.250000','2026-10-26 07:35:04.250000',6);
CREATE TABLE acts (
	act_id VARCHAR NOT NULL, 
	at DATETIME NOT NULL, 
	actor VARCHAR NOT NULL, 
	via VARCHAR NOT NULL, 
	origin VARCHAR, 
	action VARCHAR NOT NULL, 
	target VARCHAR, 
	details JSON, 
	result VARCHAR NOT NULL, 
	words VARCHAR, 
	CONSTRAINT pk_acts PRIMARY KEY (act_id)
);
INSERT INTO "acts" VALUES('01793000137250000-efa20b6ba354d7d8','2026-10-26 07:35:37.250000','admin','api','192.0.2.1','key.create','key_golden','{"alias":"häuser","limits":{"rpm":60}}','done',NULL);
INSERT INTO "acts" VALUES('01793000138250000-edd1471b8f1406ac','2026-10-26 07:35:38.250000','root','cli','golden-host','key.block','key_nobody',NULL,'refused','no such key');
INSERT INTO "acts" VALUES('01793000139250000-bd3d49ec09773a40','2026-10-26 07:35:39.250000','root','cli','golden-host','key.revoke','key_nobody',NULL,'failed','RuntimeError');
INSERT INTO "acts" VALUES('01793000140250000-329bbd51dfaeb79e','2026-10-26 07:35:40.250000','admin','api','192.0.2.1','credit.add','org_golden','{"usd":"50"}','begun',NULL);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0005');
CREATE TABLE api_keys (
	key_id VARCHAR NOT NULL, 
	alias VARCHAR NOT NULL, 
	digest BLOB NOT NULL, 
	hint VARCHAR NOT NULL, 
	models JSON, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	revoked_at DATETIME, 
	revision BIGINT NOT NULL, project_id VARCHAR DEFAULT 'proj_default' NOT NULL, limits JSON, on_exhausted VARCHAR DEFAULT 'finish' NOT NULL, when_down VARCHAR, tags JSON, blocked_at DATETIME, old_digest BLOB, old_until DATETIME, 
	CONSTRAINT pk_api_keys PRIMARY KEY (key_id), 
	CONSTRAINT uq_api_keys_digest UNIQUE (digest), 
	CONSTRAINT uq_api_keys_revision UNIQUE (revision)
);
INSERT INTO "api_keys" VALUES('key_golden','häuser',X'E7989DB4D973557602802A87FEDA9FA80B8DB8F81DD916859AC1C58DA241A3BC','tw-…gggg','["electron","häuser/größe"]','2026-10-26 07:35:05.250000',NULL,NULL,7,'proj_golden','{"budget_usd":5000000000,"budget_window":"calendar_month","rpm":60,"tpm":90000,"parallel":3}','cut','open','["prod","größe"]',NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_other','other',X'0000000000000000000000000000000000000000000000000000000000000000','tw-…gggg',NULL,'2026-10-26 07:35:06.250000',NULL,NULL,8,'proj_default',NULL,'finish','closed',NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_rotated','rotated',X'3232323232323232323232323232323232323232323232323232323232323232','tw-…2222',NULL,'2026-10-26 07:35:07.250000','2026-11-06 21:20:00.250000',NULL,10,'proj_default','{"prepaid":true}','finish',NULL,NULL,NULL,X'3131313131313131313131313131313131313131313131313131313131313131','2026-11-01 02:26:40.250000');
INSERT INTO "api_keys" VALUES('key_blocked','blocked',X'626C6F636B656420202020202020202020202020202020202020202020202020','tw-…gggg',NULL,'2026-10-26 07:35:09.250000',NULL,NULL,12,'proj_default',NULL,'finish',NULL,NULL,'2026-10-26 07:35:10.250000',NULL,NULL);
INSERT INTO "api_keys" VALUES('key_revoked','revoked',X'7265766F6B656420202020202020202020202020202020202020202020202020','tw-…gggg',NULL,'2026-10-26 07:35:12.250000',NULL,'2026-10-26 07:35:13.250000',14,'proj_default',NULL,'finish',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE balances (
	key_id VARCHAR NOT NULL, 
	charged_usd NUMERIC(24, 9) NOT NULL, 
	cost_usd NUMERIC(24, 9) NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	reasoning_tokens BIGINT NOT NULL, 
	total_tokens BIGINT NOT NULL, 
	entries BIGINT NOT NULL, 
	CONSTRAINT pk_balances PRIMARY KEY (key_id)
);
INSERT INTO "balances" VALUES('key_golden',0.97193766,0.17590022,140734,2800,3150,300,143884,24);
INSERT INTO "balances" VALUES('key_other',2.845e-05,2.555e-05,17,0,64,0,81,1);
INSERT INTO "balances" VALUES('org_golden',-48.999999999,0,0,0,0,0,0,2);
CREATE TABLE budget_alerts (
	alert_id VARCHAR NOT NULL, 
	scope_id VARCHAR NOT NULL, 
	threshold INTEGER NOT NULL, 
	since DATETIME NOT NULL, 
	spent_usd NUMERIC(24, 9) NOT NULL, 
	budget_usd NUMERIC(24, 9) NOT NULL, 
	created_at DATETIME NOT NULL, 
	state VARCHAR NOT NULL, 
	tries INTEGER NOT NULL, 
	next_at DATETIME NOT NULL, 
	last_error VARCHAR, 
	CONSTRAINT pk_budget_alerts PRIMARY KEY (alert_id)
);
INSERT INTO "budget_alerts" VALUES('alert_00000000000000000000000000000001','key_golden',50,'2026-10-24 00:00:00.000000',4,5,'2026-10-26 07:33:21.250000','sent',1,'2026-10-26 07:34:30.250000',NULL);
INSERT INTO "budget_alerts" VALUES('alert_00000000000000000000000000000002','key_golden',80,'2026-10-24 00:00:00.000000',4,5,'2026-10-26 07:33:22.250000','given_up',1,'2026-10-27 08:33:30.250000','HTTP 500');
INSERT INTO "budget_alerts" VALUES('alert_00000000000000000000000000000003','key_golden',100,'2026-10-24 00:00:00.000000',4,5,'2026-10-26 07:33:23.250000','open',1,'2026-10-26 07:34:30.250000',NULL);
CREATE TABLE dead_letters (
	id VARCHAR NOT NULL, 
	exchange_id VARCHAR, 
	kind VARCHAR, 
	seq INTEGER, 
	reason VARCHAR NOT NULL, 
	payload TEXT NOT NULL, 
	first_seen DATETIME NOT NULL, 
	last_seen DATETIME NOT NULL, 
	times_seen BIGINT NOT NULL, 
	node VARCHAR, 
	journal_seq BIGINT, 
	state VARCHAR NOT NULL, 
	state_at DATETIME NOT NULL, 
	CONSTRAINT pk_dead_letters PRIMARY KEY (id)
);
INSERT INTO "dead_letters" VALUES('491b66e5767aeb1ceec6664a2848eb285d9114b42af1cf413ed08c1084b9f089',NULL,NULL,NULL,'unreadable: UndecodableError','{"version": 9}','2026-10-26 07:35:28.250000','2026-10-26 07:35:29.250000',2,'00000000000000aa',1099511627778,'open','2026-10-26 07:35:28.250000');
INSERT INTO "dead_letters" VALUES('87f05e3b984aa24b2bd14121ddf7a67357f615cf3ed6ba0ba4cc29fd532f3b3f','01a17720-cee2-7000-8000-000000000001','usage',0,'conflict: the ledger has another content under this id','{"entry_id": "62dc4994-6e09-5966-9e03-5a638d45020c", "exchange_id": "01a17720-cee2-7000-8000-000000000001", "kind": "usage", "key_id": "key_golden", "key_alias": "h\u00e4user", "provider": "electron", "model": "electron", "upstream_model": "electron-2", "endpoint": "/v1/chat/completions", "streamed": true, "outcome": "served", "finish_reason": "stop", "usage_source": "reported", "estimator": null, "prompt_tokens": 1100, "cached_tokens": 300, "completion_tokens": 290, "reasoning_tokens": null, "total_tokens": 1390, "events": 32, "bytes": 8765, "cost_usd": 210300, "charge_usd": 243900, "price_version": "config-f155e55e", "provider_response_id": "chatcmpl-1", "started_at": 1793000001.25, "first_token_ms": 0.1, "duration_ms": 1234.567, "details": {"billed": "prompt+output", "price": {"version": "config-f155e55e", "input": "0.13", "cached_input": "0.07", "output": "0.41"}, "cost": {"version": "config-6127f701", "input": "0.11", "cached_input": "0.05", "output": "0.37"}}, "seq": 0}','2026-10-26 07:35:31.250000','2026-10-26 07:35:31.250000',1,'00000000000000aa',1099511627779,'open','2026-10-26 07:35:31.250000');
INSERT INTO "dead_letters" VALUES('00e8427b57ed951a3f30cb16e04e4afe6fcdce64385b84c77bd9eb289c52edbd','01a17720-cee2-7000-8000-000000000001','usage',0,'repeated under another receipt','{"entry_id": "62dc4994-6e09-5966-9e03-5a638d45020c", "exchange_id": "01a17720-cee2-7000-8000-000000000001", "kind": "usage", "key_id": "key_golden", "key_alias": "h\u00e4user", "provider": "electron", "model": "electron", "upstream_model": "electron-2", "endpoint": "/v1/chat/completions", "streamed": true, "outcome": "served", "finish_reason": "stop", "usage_source": "reported", "estimator": null, "prompt_tokens": 1100, "cached_tokens": 300, "completion_tokens": 290, "reasoning_tokens": null, "total_tokens": 1390, "events": 31, "bytes": 8765, "cost_usd": 210300, "charge_usd": 243900, "price_version": "config-f155e55e", "provider_response_id": "chatcmpl-1", "started_at": 1793000001.25, "first_token_ms": 0.1, "duration_ms": 1234.567, "details": {"billed": "prompt+output", "price": {"version": "config-f155e55e", "input": "0.13", "cached_input": "0.07", "output": "0.41"}, "cost": {"version": "config-6127f701", "input": "0.11", "cached_input": "0.05", "output": "0.37"}}, "seq": 0}','2026-10-26 07:35:33.250000','2026-10-26 07:35:33.250000',1,'00000000000000aa',1099511627780,'dropped','2026-10-26 07:35:33.250000');
INSERT INTO "dead_letters" VALUES('f2e0b529b6157fa202cbf4ec47f64148cfd7b6e47d68496dedd84b6c8ca95df9',NULL,NULL,NULL,'unreadable: UndecodableError','{"opened":{"exchange_id":"01a17721-9a02-7000-8000-000000000035","key_id":"key_golden","key_alias":"häuser","provider":"electron","model":"electron","upstream_model":"electron-2","endpoint":"/v1/chat/completions","streamed":true,"started_at":1793000053.25,"price":{"version":"config-f155e55e","tiers":[{"input":130000000,"cached_input":70000000,"output":410000000}]},"cost":{"version":"config-6127f701","tiers":[{"input":110000000,"cached_input":50000000,"output":370000000}]},"prompt_tokens_estimate":17,"completion_tokens_max":null,"slot":0,"bill":{},"held_usd":null,"attempts":[]},"outcome":"served","reading":{"usage":{"prompt_tokens":1100,"cached_tokens":300,"completion_tokens":290,"total_tokens":1390},"source":"reported"},"bills":"prompt+output","events":31,"bytes":8765,"duration_ms":1234.567,"first_token_ms":0.1,"finish_reason":"stop","provider_response_id":"chatcmpl-1","details":{},"kind":"usage","seq":0,"version":1}','2026-10-26 07:35:34.250000','2026-10-26 07:35:34.250000',1,'00000000000000aa',1099511627781,'retried','2026-10-26 07:35:36.250000');
INSERT INTO "dead_letters" VALUES('17c63ac3c6d6059bb03eeb11bd546dd930ed0f28d5a58c2d5afacbe7da3c189e',NULL,NULL,NULL,'delivered 5 times and never settled; dropped: nobody''s','{}','2026-10-26 07:35:35.250000','2026-10-26 07:35:35.250000',1,'00000000000000aa',1099511627782,'dropped','2026-10-26 07:41:40.250000');
CREATE TABLE ledger_clock (
	id INTEGER NOT NULL, 
	settled_at DATETIME NOT NULL, 
	CONSTRAINT pk_ledger_clock PRIMARY KEY (id)
);
INSERT INTO "ledger_clock" VALUES(1,'2026-10-26 07:35:36.250000');
CREATE TABLE ledger_entries (
	entry_id VARCHAR NOT NULL, 
	exchange_id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	key_id VARCHAR NOT NULL, 
	key_alias VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	upstream_model VARCHAR NOT NULL, 
	endpoint VARCHAR NOT NULL, 
	streamed BOOLEAN NOT NULL, 
	outcome VARCHAR NOT NULL, 
	finish_reason VARCHAR, 
	usage_source VARCHAR NOT NULL, 
	estimator VARCHAR, 
	prompt_tokens BIGINT, 
	cached_tokens BIGINT, 
	completion_tokens BIGINT, 
	reasoning_tokens BIGINT, 
	total_tokens BIGINT, 
	events BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	cost_usd NUMERIC(24, 9), 
	charge_usd NUMERIC(24, 9), 
	price_version VARCHAR, 
	provider_response_id VARCHAR, 
	started_at DATETIME NOT NULL, 
	first_token_ms DOUBLE, 
	duration_ms DOUBLE NOT NULL, 
	details JSON NOT NULL, 
	seq INTEGER NOT NULL, 
	content_hash VARCHAR NOT NULL, 
	settled_at DATETIME NOT NULL, 
	node VARCHAR, 
	journal_seq BIGINT, 
	CONSTRAINT pk_ledger_entries PRIMARY KEY (exchange_id, kind, seq)
);
INSERT INTO "ledger_entries" VALUES('62dc4994-6e09-5966-9e03-5a638d45020c','01a17720-cee2-7000-8000-000000000001','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,1100,300,290,NULL,1390,31,8765,0.0002103,0.0002439,'config-f155e55e','chatcmpl-1','2026-10-26 07:33:21.250000',0.1,1234.567,'{"billed":"prompt+output","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'5f7b3b525a74e16c7d875bce526a4194664f64688a41b5c49123bfade295861b','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',1099511627789);
INSERT INTO "ledger_entries" VALUES('9850c737-cd95-59c9-8645-97f9bc719fb8','01a17720-d2ca-7000-8000-000000000002','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,1100,300,290,NULL,1390,31,8765,NULL,NULL,NULL,'chatcmpl-1','2026-10-26 07:33:22.250000',0.1,1234.567,'{"flags":["a","b"],"ratio":0.1,"usage":{"x":null},"billed":"prompt+output","unpriced":true,"cost_unknown":true}',0,'03fb5cced7f795b515f04c93c946e09a62dfa15acd1432fa2ad4855791d9f089','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255553);
INSERT INTO "ledger_entries" VALUES('874f292f-f54f-5389-9f5e-8ebbf52f3737','01a17720-d6b2-7000-8000-000000000003','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,2000,400,900,300,2900,31,8765,0.160165,0.160165,'config-ec5e80f1','chatcmpl-1','2026-10-26 07:33:23.250000',0.1,1234.567,'{"billed":"prompt+output","units":{"cache_write_tokens":600,"cache_write_1h_tokens":200,"audio_prompt_tokens":50,"audio_completion_tokens":60,"images":2,"audio_ms":61500,"characters":1234,"searches":3,"unbilled_prompt_tokens":10,"unbilled_completion_tokens":20},"service_tier":"priority","price":{"version":"config-ec5e80f1","input":"2.5","cached_input":"0.25","output":"20","cache_write":"3.125","cache_write_1h":"5","audio_input":"40","audio_output":"80","reasoning":"12","image":"0.04","audio_hour":"0.36","characters":"15","searches":"10","request":"0.000005","service_tier":"priority"},"cost":{"version":"config-ec5e80f1","input":"2.5","cached_input":"0.25","output":"20","cache_write":"3.125","cache_write_1h":"5","audio_input":"40","audio_output":"80","reasoning":"12","image":"0.04","audio_hour":"0.36","characters":"15","searches":"10","request":"0.000005","service_tier":"priority"}}',0,'6f58389e92c4cf0e8ef38aa3a55ff2c0e0b33ff90ddf46001d24fb20e44beb57','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255554);
INSERT INTO "ledger_entries" VALUES('331dfed2-b101-5502-bba6-77966627646c','01a17720-da9a-7000-8000-000000000004','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,130000,0,10,NULL,130010,31,8765,0.0143037,0.650105,'config-ec5e80f1','chatcmpl-1','2026-10-26 07:33:24.250000',0.1,1234.567,'{"billed":"prompt+output","price":{"version":"config-ec5e80f1","input":"5","cached_input":"0.25","output":"10","cache_write":"3.125","cache_write_1h":"5","audio_input":"40","audio_output":"80","reasoning":"12","image":"0.04","audio_hour":"0.36","characters":"15","searches":"10","request":"0.000005","above_prompt_tokens":128000},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"},"held_usd":"1.23456789"}',0,'1ce28a6583da95db47ede85b42cdd93b51e0887b0b25c257b441c360839832ad','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255555);
INSERT INTO "ledger_entries" VALUES('2d470599-6fb3-5c66-a379-1bc46e657736','01a17720-de82-7000-8000-000000000005','usage','key_other','other','electron','electron','electron-2','/v1/chat/completions',1,'client_left',NULL,'estimated','ridge-2',17,NULL,64,NULL,81,31,8765,2.555e-05,2.845e-05,'config-f155e55e',NULL,'2026-10-26 07:33:25.250000',NULL,1234.567,'{"billed":"prompt+output","expected_error":0.25,"capped":true,"hidden_reasoning":12,"price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'dfc0731a4eaa017251988d28cdffe02f26cbb5f64d8839faf8e43aa56e967e58','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255556);
INSERT INTO "ledger_entries" VALUES('997eaf5d-3703-522f-9aa4-f17ebb82357e','01a17720-e26a-7000-8000-000000000006','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'upstream_failed',NULL,'estimated','ridge-2',17,NULL,5,NULL,22,31,8765,1.87e-06,2.21e-06,'config-f155e55e',NULL,'2026-10-26 07:33:26.250000',0.1,1234.567,'{"billed":"prompt","expected_error":0.25,"price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'74a455cda7d23b84a168f222eee3de4da4316033f5d3492f5df824a3a1af1338','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255557);
INSERT INTO "ledger_entries" VALUES('662e63b1-9182-5ef9-8742-d91be135c703','01a17720-e652-7000-8000-000000000007','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',0,'upstream_stalled',NULL,'estimated','ridge-2',17,NULL,5,NULL,22,0,8765,1.85e-06,2.05e-06,'config-f155e55e',NULL,'2026-10-26 07:33:27.250000',0.1,1234.567,'{"billed":"output","expected_error":0.25,"price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"},"delivered_only":true}',0,'93e8d6e304366c884c5631e36e193ffc26db7e1c14174ea068aaeadbb7e9c0e5','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255558);
INSERT INTO "ledger_entries" VALUES('bea8e4b5-5486-533a-b90b-45d6023237c3','01a17720-ea3a-7000-8000-000000000008','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'budget_cut','budget','reported',NULL,1100,300,290,NULL,1390,31,8765,0.0002103,0.0002439,'config-f155e55e','chatcmpl-1','2026-10-26 07:33:28.250000',0.1,1234.567,'{"billed":"prompt+output","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'3b7c4bc630b6f6bc6f329752059786afbbb774ef4f9befeb8cba303e86d0c53f','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255559);
INSERT INTO "ledger_entries" VALUES('e0ab4329-a506-57d5-9de4-3143f3269cd4','01a17720-ee22-7000-8000-000000000009','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'shut_down',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,'config-f155e55e',NULL,'2026-10-26 07:33:29.250000',0.1,1234.567,'{"billed":"nothing","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'f17d253d28cb041cc633ecef9604188a43e2637d356505a8fe4259d69e4d4176','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255560);
INSERT INTO "ledger_entries" VALUES('10a7648f-28a8-5a34-b0fe-d3f5dacec5f3','01a17720-f20a-7000-8000-00000000000a','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,1100,300,290,NULL,1390,31,8765,0.0002103,0.0002439,'config-f155e55e','resp-10','2026-10-26 07:33:30.250000',0.1,1234.567,'{"billed":"prompt+output","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"},"attempts":[{"provider":"tera","upstream_model":"tera-large-0901","failed":"connection refused","status":null,"started_at":1793000009.75,"duration_ms":12.5},{"provider":"giga","upstream_model":"giga-1","failed":"HTTP 503","status":503,"started_at":1793000009.85,"duration_ms":250.0},{"provider":"mega","upstream_model":"mega-1","failed":"HTTP 429","status":429,"started_at":1793000010.15,"duration_ms":31.25}]}',0,'32f22abdb4fe09b6b8e7a6d7a15d218d0b44fdfff6a42a2e39e02e98c48cc678','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255561);
INSERT INTO "ledger_entries" VALUES('efa6d80f-29b1-53b2-a61d-90830306d1e2','01a17720-f5f2-7000-8000-00000000000b','usage','key_golden','häuser','electron','electron','electron-2','/v1/images/generations',1,'served','stop','reported',NULL,NULL,NULL,NULL,NULL,NULL,0,8765,NULL,0.160005,'config-ec5e80f1','chatcmpl-1','2026-10-26 07:33:31.250000',0.1,1234.567,'{"billed":"prompt+output","units":{"images":4},"price":{"version":"config-ec5e80f1","input":"2.5","cached_input":"0.25","output":"10","cache_write":"3.125","cache_write_1h":"5","audio_input":"40","audio_output":"80","reasoning":"12","image":"0.04","audio_hour":"0.36","characters":"15","searches":"10","request":"0.000005"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"},"cost_unknown":true}',0,'f3660cc69503e8c166dd525de008553e8967b2c9b06d3d698facecd6fa20a952','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255562);
INSERT INTO "ledger_entries" VALUES('79c37439-4a60-5fec-9a3f-f76bd996a85e','01a17720-f9da-7000-8000-00000000000c','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'refused_upstream',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,31,8765,0,0,'config-f155e55e',NULL,'2026-10-26 07:33:32.250000',0.1,1234.567,'{"billed":"nothing","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'82f6ffec2e65f582baa4fca8b55faa6a85b08f42fb739838b160268938285445','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255563);
INSERT INTO "ledger_entries" VALUES('f001d48a-e44c-5b38-a053-f7daca30e721','01a17720-fdc2-7000-8000-00000000000d','usage','key_golden','häuser','electron','häuser/größe','electron-2','/v1/chat/completions',1,'served','?broken','reported',NULL,1100,300,290,NULL,1390,31,8765,0.0002103,0.0002439,'config-f155e55e','chatcmpl-1','2026-10-26 07:33:33.250000',0.1,1234.567,'{"billed":"prompt+output","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'74d53277c8141f07ba18c66d9fca5fa01f881bcabd591b391fdb19ef099056bb','2026-10-26 07:35:15.250000','ce9042c49e58c5ac',2199023255564);
INSERT INTO "ledger_entries" VALUES('df4d1662-9918-5418-bcbd-d04402d5396d','01a17720-f20a-7000-8000-00000000000a','attempt','key_golden','häuser','tera','electron','tera-large-0901','/v1/chat/completions',1,'upstream_failed',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'2026-10-26 07:33:29.750000',NULL,12.5,'{"failed":"connection refused"}',1,'648e01ccf028d8874d9d6f2aa555a36f37941471a72b740d6f88d4c5b22a2374','2026-10-26 07:35:15.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('1494e7f0-31b4-5586-9f9a-ce87a5fbe9ca','01a17720-f20a-7000-8000-00000000000a','attempt','key_golden','häuser','giga','electron','giga-1','/v1/chat/completions',1,'upstream_failed',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,0,NULL,NULL,'2026-10-26 07:33:29.850000',NULL,250.0,'{"failed":"HTTP 503","upstream_status":503,"cost_unknown":true}',2,'3387ead150382a3d9f07cd2d7cf193f59e6ddd0b866badee36c25168a5fae8f9','2026-10-26 07:35:15.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('6e88b7e7-3dfa-505b-b690-8ca2adafd3bd','01a17720-f20a-7000-8000-00000000000a','attempt','key_golden','häuser','mega','electron','mega-1','/v1/chat/completions',1,'refused_upstream',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'2026-10-26 07:33:30.150000',NULL,31.25,'{"failed":"HTTP 429","upstream_status":429}',3,'8ddd8a3c4095a6fc79fe5860537eae1481e0de4897ee18b4c48ca581bfaf925d','2026-10-26 07:35:15.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('c8b89c38-881f-56eb-87ce-c3537dbb2d28','01a17721-8e4a-7000-8000-000000000032','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'crashed',NULL,'estimated','ridge-2',17,NULL,10,NULL,27,10,3000,5.57e-06,6.31e-06,'config-f155e55e',NULL,'2026-10-26 07:34:10.250000',NULL,0.0,'{"swept":true,"billed":"prompt+output","expected_error":0.25,"price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'33207acd28cdd4070a9dd00b931b236db26605992ebd3366c35b19fd0a0b709a','2026-10-26 07:35:16.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('f9cf5271-fd3c-59fe-b378-595173504d43','01a17721-8e4a-7000-8000-000000000032','adjustment','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'crashed',NULL,'estimated','ridge-2',0,NULL,10,NULL,10,10,3000,3.7e-06,4.1e-06,'config-f155e55e',NULL,'2026-10-26 07:34:10.250000',NULL,0.0,'{"swept":true,"billed":"prompt+output","expected_error":0.25,"price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"},"adjusts":"c8b89c38-881f-56eb-87ce-c3537dbb2d28","why":"swept again","restates":"b4b13191173e4d96106fc3bbdb7056bf82ac79a5bedaca80c5b4eebf702676ad"}',1,'fb9171e4d81b02e1fe53bd02c8468c37a4a0a0e0f077d109981fe13b0b03848e','2026-10-26 07:35:18.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('b25c11c5-9d46-5a2d-8cdb-87511b97aa7d','01a17721-8e4a-7000-8000-000000000032','adjustment','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,1083,300,270,NULL,1353,11,2765,0.00020103,0.00023349,'config-f155e55e','chatcmpl-1','2026-10-26 07:34:10.250000',0.1,1234.567,'{"billed":"prompt+output","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"},"adjusts":"c8b89c38-881f-56eb-87ce-c3537dbb2d28","why":"late record","restates":"049789c5a78b2fc9c2fb5126a2b33401f0ac304ebb78b0b037c86c7037a8f5d2"}',2,'810356c472cd6715610b3712ceafb069d48549572ff4d258d5aedf8c2322f7fc','2026-10-26 07:35:20.250000','00000000000000aa',1099511627777);
INSERT INTO "ledger_entries" VALUES('b53f7e7a-f9e3-5906-93dc-bf88460b7f21','01a17721-9232-7000-8000-000000000033','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'crashed',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,'config-f155e55e',NULL,'2026-10-26 07:34:11.250000',NULL,0.0,'{"swept":true,"progress":"missing","billed":"nothing","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'15c7cae6a943ab75eb30ab7ec770673e3d8c6c0d537107691362ebe93486b3c1','2026-10-26 07:35:21.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('230e9cd7-8502-597f-baf6-4243b0408a39','00000000-0000-0000-0000-000000000005','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,1100,300,290,NULL,1390,31,8765,0.0002103,0.0002439,'config-f155e55e','chatcmpl-1','2026-10-26 07:34:12.250000',0.1,1234.567,'{"billed":"prompt+output","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'0a7d8d42dad3114f6dac4b1902a31cbafb48b3582e0c670e7d069d32847d6a6b','2026-10-26 07:35:22.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('76ff60ed-19ef-5df0-8b42-0bff28d143f6','01a17720-cee2-7000-8000-000000000001','adjustment','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,0,0,0,NULL,0,0,0,0,-0.0002429,'config-f155e55e','chatcmpl-1','2026-10-26 07:33:21.250000',NULL,0.0,'{"adjusts":"62dc4994-6e09-5966-9e03-5a638d45020c","why":"goodwill","by":"operator","sets":{"charge_usd":"0.000001"}}',1,'24bc011cd411789da4aadeea557b9baef877c0a2ccc572ad90b640e9858634ad','2026-10-26 07:35:23.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('bd4d9f99-eaa4-50e9-9d92-b9772c290421','01a17720-ea3a-7000-8000-000000000008','adjustment','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'budget_cut','budget','corrected',NULL,-100,0,-90,NULL,-190,0,0,-4.43e-05,-4.99e-05,'config-f155e55e','chatcmpl-1','2026-10-26 07:33:28.250000',NULL,0.0,'{"adjusts":"bea8e4b5-5486-533a-b90b-45d6023237c3","why":"miscounted – sorry","by":"operator","sets":{"prompt_tokens":1000,"completion_tokens":200}}',1,'73cda42d356241979f3b42ec4187c72b390f8ef5c3ccec36e8d0368ff74d6727','2026-10-26 07:35:24.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('c23c011a-6efc-55d7-85e8-85373313ff6c','01a17720-f20a-7000-8000-00000000000a','adjustment','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,0,0,0,NULL,0,0,0,0,0.0002439,'config-17910f85','resp-10','2026-10-26 07:33:30.250000',NULL,0.0,'{"adjusts":"10a7648f-28a8-5a34-b0fe-d3f5dacec5f3","why":"rerated","by":"rerate","price":{"version":"config-17910f85","input":"0.26","cached_input":"0.14","output":"0.82"}}',1,'47e017b8dc1836cf4d4c30266e33bf5685cc07a44af8c7726f48d5a06934d4b6','2026-10-26 07:35:25.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('1d48b352-1e21-560a-948f-bdf2dcd5aa97','01a17721-b55a-7000-8000-00000000003c','credit','org_golden','Größe AG','','','','',0,'credit',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,-50,NULL,NULL,'2026-10-26 07:33:20.250000',NULL,0.0,'{"why":"paid in","by":"operator"}',0,'e24c0b5ec83d65d96d6ba201519ad1716302dd86cfe73ce5b7799f38a3c74252','2026-10-26 07:35:26.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('81e5baf7-e8ad-564c-ae5c-ff892b52ebd9','01a17721-b942-7000-8000-00000000003d','credit','org_golden','Größe AG','','','','',0,'credit',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,1.000000001,NULL,NULL,'2026-10-26 07:33:20.250000',NULL,0.0,'{"why":"refund","by":"operator"}',0,'f7619610ecbfd4b08baabedffd6c054c66d5bfe651c3c511bcc088344ba34058','2026-10-26 07:35:27.250000',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('9d77b1df-7ad3-5040-a848-e86941d1093d','01a17721-9a02-7000-8000-000000000035','usage','key_golden','häuser','electron','electron','electron-2','/v1/chat/completions',1,'served','stop','reported',NULL,1100,300,290,NULL,1390,31,8765,0.0002103,0.0002439,'config-f155e55e','chatcmpl-1','2026-10-26 07:34:13.250000',0.1,1234.567,'{"billed":"prompt+output","price":{"version":"config-f155e55e","input":"0.13","cached_input":"0.07","output":"0.41"},"cost":{"version":"config-6127f701","input":"0.11","cached_input":"0.05","output":"0.37"}}',0,'be6fba3f337a190bccbe13388c93a17247474b38d39169242e8c4e6fc34d649f','2026-10-26 07:35:36.250000','00000000000000aa',1099511627781);
CREATE TABLE sink_letters (
	sink VARCHAR NOT NULL, 
	entry_id VARCHAR NOT NULL, 
	settled_at DATETIME NOT NULL, 
	why VARCHAR NOT NULL, 
	first_seen DATETIME NOT NULL, 
	state VARCHAR NOT NULL, 
	CONSTRAINT pk_sink_letters PRIMARY KEY (sink, entry_id)
);
INSERT INTO "sink_letters" VALUES('stripe','1494e7f0-31b4-5586-9f9a-ce87a5fbe9ca','2026-10-26 07:35:15.250000','HTTP 400','2026-10-26 07:45:00.250000','again');
INSERT INTO "sink_letters" VALUES('stripe','331dfed2-b101-5502-bba6-77966627646c','2026-10-26 07:35:15.250000','HTTP 422','2026-10-26 07:45:01.250000','open');
CREATE TABLE sinks (
	name VARCHAR NOT NULL, 
	settled_at DATETIME NOT NULL, 
	entry_id VARCHAR NOT NULL, 
	sent BIGINT NOT NULL, 
	last_sent_at DATETIME, 
	claimed_by VARCHAR, 
	claimed_until DATETIME NOT NULL, 
	failures INTEGER NOT NULL, 
	failing_since DATETIME, 
	next_at DATETIME NOT NULL, 
	last_error VARCHAR, 
	CONSTRAINT pk_sinks PRIMARY KEY (name)
);
INSERT INTO "sinks" VALUES('stripe','2026-10-26 07:35:15.250000','62dc4994-6e09-5966-9e03-5a638d45020c',4,'2026-10-26 07:45:01.250000','golden-host:1','2026-10-26 07:46:01.250000',0,NULL,'1970-01-01 00:00:00.000000',NULL);
INSERT INTO "sinks" VALUES('hook','2026-10-26 07:33:20.250000','',0,NULL,'golden-host:2','2026-10-26 07:34:21.250000',1,'2026-10-26 07:45:02.250000','2026-10-26 07:46:02.250000','HTTP 503');
CREATE TABLE usage_daily (
	day DATE NOT NULL, 
	key_id VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	charged_usd NUMERIC(24, 9) NOT NULL, 
	cost_usd NUMERIC(24, 9) NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	reasoning_tokens BIGINT NOT NULL, 
	total_tokens BIGINT NOT NULL, 
	entries BIGINT NOT NULL, 
	CONSTRAINT pk_usage_daily PRIMARY KEY (key_id, day, model)
);
INSERT INTO "usage_daily" VALUES('2026-10-26','key_golden','electron',0.97169376,0.17568992,139634,2500,2860,300,142494,23);
INSERT INTO "usage_daily" VALUES('2026-10-26','key_golden','häuser/größe',0.0002439,0.0002103,1100,300,290,0,1390,1);
INSERT INTO "usage_daily" VALUES('2026-10-26','key_other','electron',2.845e-05,2.555e-05,17,0,64,0,81,1);
CREATE INDEX ix_api_keys_alias ON api_keys (alias);
CREATE INDEX ix_ledger_entries_key_id_started_at ON ledger_entries (key_id, started_at);
CREATE INDEX ix_ledger_entries_model_started_at ON ledger_entries (model, started_at);
CREATE INDEX ix_ledger_entries_settled_at_entry_id ON ledger_entries (settled_at, entry_id);
CREATE INDEX ix_ledger_entries_node_journal_seq ON ledger_entries (node, journal_seq);
CREATE INDEX ix_usage_daily_day ON usage_daily (day);
CREATE INDEX ix_dead_letters_first_seen ON dead_letters (first_seen);
CREATE INDEX ix_dead_letters_node_journal_seq ON dead_letters (node, journal_seq);
CREATE INDEX ix_api_keys_project_id ON api_keys (project_id);
CREATE INDEX ix_accounts_parent_id ON accounts (parent_id);
CREATE INDEX ix_budget_alerts_state_next_at ON budget_alerts (state, next_at);
CREATE INDEX ix_dead_letters_exchange_id ON dead_letters (exchange_id);
CREATE INDEX ix_ledger_entries_others ON ledger_entries (started_at) WHERE kind <> 'usage';
CREATE INDEX ix_sink_letters_sink_state ON sink_letters (sink, state);
COMMIT;
