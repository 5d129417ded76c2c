PRAGMA user_version = 0;
BEGIN TRANSACTION;
CREATE TABLE account_clock (
	id INTEGER NOT NULL, 
	settled_at DATETIME NOT NULL, 
	CONSTRAINT pk_account_clock PRIMARY KEY (id)
);
INSERT INTO "account_clock" VALUES(1,'2026-11-05 17:33:21.500000');
CREATE TABLE account_daily (
	account_id VARCHAR NOT NULL, 
	day DATE NOT NULL, 
	charged_nusd BIGINT NOT NULL, 
	CONSTRAINT pk_account_daily PRIMARY KEY (account_id, day)
);
INSERT INTO "account_daily" VALUES('org_acme','2026-10-10',1950000750);
INSERT INTO "account_daily" VALUES('org_acme','2026-10-30',1950000708);
INSERT INTO "account_daily" VALUES('org_acme','2026-11-03',1830000657);
INSERT INTO "account_daily" VALUES('org_acme','2026-11-05',3900001206);
INSERT INTO "account_daily" VALUES('proj_chat','2026-10-10',1950000750);
INSERT INTO "account_daily" VALUES('proj_chat','2026-10-30',1950000708);
INSERT INTO "account_daily" VALUES('proj_chat','2026-11-03',1830000657);
INSERT INTO "account_daily" VALUES('proj_chat','2026-11-05',3900001206);
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
INSERT INTO "accounts" VALUES('org_default','organization',NULL,'default',NULL,'2026-11-29 04:22:47.334552',NULL,1);
INSERT INTO "accounts" VALUES('proj_default','project','org_default','default',NULL,'2026-11-29 04:22:47.334552',NULL,2);
INSERT INTO "accounts" VALUES('org_acme','organization',NULL,'Acme','{"budget_usd":900000000001,"budget_window":"calendar_month"}','2026-09-26 17:33:20.500000',NULL,3);
INSERT INTO "accounts" VALUES('org_paid','organization',NULL,'Paid ahead','{"prepaid":true}','2026-09-26 17:33:20.500000',NULL,4);
INSERT INTO "accounts" VALUES('proj_chat','project','org_acme','chat','{"budget_usd":70000000003,"budget_window":"7d","rpm":600}','2026-09-26 17:33:20.500000',NULL,5);
INSERT INTO "accounts" VALUES('proj_free','project','org_paid','free','{"tpm":90000}','2026-09-26 17:33:20.500000',NULL,6);
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
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0012_from_0006');
CREATE TABLE api_keys (
	key_id VARCHAR NOT NULL, 
	alias VARCHAR NOT NULL, 
	digest BLOB NOT NULL, 
	hint VARCHAR NOT NULL, 
	models JSON, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	revoked_at DATETIME, 
	revision BIGINT NOT NULL, project_id VARCHAR DEFAULT 'proj_default' NOT NULL, limits JSON, on_exhausted VARCHAR DEFAULT 'finish' NOT NULL, on_store_outage VARCHAR, tags JSON, blocked_at DATETIME, old_digest BLOB, old_until DATETIME, 
	CONSTRAINT pk_api_keys PRIMARY KEY (key_id), 
	CONSTRAINT uq_api_keys_digest UNIQUE (digest), 
	CONSTRAINT uq_api_keys_revision UNIQUE (revision)
);
INSERT INTO "api_keys" VALUES('key_none','none',X'0000000000000000000000000000000000000000000000000000000000000000','tw-…0000',NULL,'2026-09-26 17:33:20.500000',NULL,NULL,7,'proj_chat','{"budget_usd":20000000014,"budget_window":"none"}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_12h','12h',X'0101010101010101010101010101010101010101010101010101010101010101','tw-…0001',NULL,'2026-09-26 18:33:21.750000',NULL,NULL,8,'proj_chat','{"budget_usd":30000000021,"budget_window":"12h"}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_24h','24h',X'0202020202020202020202020202020202020202020202020202020202020202','tw-…0002',NULL,'2026-09-26 19:33:23.000000',NULL,NULL,9,'proj_chat','{"budget_usd":40000000028,"budget_window":"24h"}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_7d','7d',X'0303030303030303030303030303030303030303030303030303030303030303','tw-…0003',NULL,'2026-09-26 20:33:24.250000',NULL,NULL,10,'proj_chat','{"budget_usd":50000000035,"budget_window":"7d"}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_4w','4w',X'0404040404040404040404040404040404040404040404040404040404040404','tw-…0004',NULL,'2026-09-26 21:33:25.500000',NULL,NULL,11,'proj_chat','{"budget_usd":60000000042,"budget_window":"4w"}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_30d','30d',X'0505050505050505050505050505050505050505050505050505050505050505','tw-…0005',NULL,'2026-09-26 22:33:26.750000',NULL,NULL,12,'proj_chat','{"budget_usd":70000000049}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_calendarmonth','calendarmonth',X'0606060606060606060606060606060606060606060606060606060606060606','tw-…0006',NULL,'2026-09-26 23:33:28.000000',NULL,NULL,13,'proj_chat','{"budget_usd":80000000056,"budget_window":"calendar_month"}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_prepaid','prepaid',X'0707070707070707070707070707070707070707070707070707070707070707','tw-…0007',NULL,'2026-09-27 00:33:29.250000',NULL,NULL,14,'proj_default','{"prepaid":true}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_both','both',X'0808080808080808080808080808080808080808080808080808080808080808','tw-…0008',NULL,'2026-09-27 01:33:30.500000',NULL,NULL,15,'proj_free','{"budget_usd":5000000000,"budget_window":"calendar_month","prepaid":true,"parallel":3}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_rates','rates',X'0909090909090909090909090909090909090909090909090909090909090909','tw-…0009',NULL,'2026-09-27 02:33:31.750000',NULL,NULL,16,'proj_free','{"rpm":60,"tpm":9000,"parallel":2}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_spent','spent',X'0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A','tw-…0010',NULL,'2026-09-27 03:33:33.000000',NULL,NULL,17,'proj_default','{"budget_usd":1000000000}','finish',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "api_keys" VALUES('key_plain','plain',X'0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B','tw-…0011',NULL,'2026-09-27 04:33:34.250000',NULL,NULL,18,'proj_default',NULL,'finish',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE archived_receipts (
	node VARCHAR NOT NULL, 
	first_seq BIGINT NOT NULL, 
	last_seq BIGINT NOT NULL, 
	CONSTRAINT pk_archived_receipts PRIMARY KEY (node, first_seq)
);
CREATE TABLE archived_sums (
	month VARCHAR NOT NULL, 
	key_id VARCHAR NOT NULL, 
	day DATE NOT NULL, 
	model VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	charged_usd NUMERIC(24, 9) NOT NULL, 
	cost_usd NUMERIC(24, 9) NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	reasoning_tokens BIGINT NOT NULL, 
	total_tokens BIGINT NOT NULL, 
	entries BIGINT NOT NULL, 
	CONSTRAINT pk_archived_sums PRIMARY KEY (month, key_id, day, model, kind)
);
CREATE TABLE archives (
	month VARCHAR NOT NULL, 
	statements_until VARCHAR NOT NULL, 
	entries BIGINT NOT NULL, 
	file VARCHAR NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	archived_at DATETIME NOT NULL, 
	archived_by VARCHAR NOT NULL, 
	removed_at DATETIME, 
	CONSTRAINT pk_archives PRIMARY KEY (month)
);
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
INSERT INTO "balances" VALUES('key_12h',0.950000285,0.617283945,500,100,250,0,750,5);
INSERT INTO "balances" VALUES('key_24h',1.360000462,0.617283945,500,100,250,0,750,6);
INSERT INTO "balances" VALUES('key_30d',2.750001005,0.617283945,500,100,250,0,750,5);
INSERT INTO "balances" VALUES('key_4w',2.260000822,0.617283945,500,100,250,0,750,6);
INSERT INTO "balances" VALUES('key_7d',1.850000645,0.617283945,500,100,250,0,750,5);
INSERT INTO "balances" VALUES('key_none',0.460000102,0.617283945,500,100,250,0,750,6);
INSERT INTO "balances" VALUES('key_both',-3.439998458,0.617283945,500,100,250,0,750,7);
INSERT INTO "balances" VALUES('key_calendarmonth',3.160001182,0.617283945,500,100,250,0,750,6);
INSERT INTO "balances" VALUES('key_plain',5.450002085,0.617283945,500,100,250,0,750,5);
INSERT INTO "balances" VALUES('key_prepaid',-15.349998634,0.617283945,500,100,250,0,750,7);
INSERT INTO "balances" VALUES('key_rates',4.550001725,0.617283945,500,100,250,0,750,5);
INSERT INTO "balances" VALUES('key_spent',4.960001902,0.617283945,500,100,250,0,750,6);
INSERT INTO "balances" VALUES('org_paid',-60.000000009,0,0,0,0,0,0,1);
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
CREATE TABLE ledger_clock (
	id INTEGER NOT NULL, 
	settled_at DATETIME NOT NULL, 
	CONSTRAINT pk_ledger_clock PRIMARY KEY (id)
);
INSERT INTO "ledger_clock" VALUES(1,'2026-11-05 17:33:21.500006');
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
INSERT INTO "ledger_entries" VALUES('416005c9-22f4-587b-93da-990183fa14c9','01a1ac8e-c674-7000-8000-000000000001','usage','key_none','none','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.100000007,'config-0badcafe','resp-1','2026-11-05 16:33:20.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'e1d4c91194686f06e26a75356b5b7cde48d1538fd74349008d062a6c663160a5','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',0);
INSERT INTO "ledger_entries" VALUES('5b6f85cc-f5d6-5705-9a78-421e4b8fcc45','01a1aa4d-fe34-7000-8000-000000000002','usage','key_none','none','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.100000014,'config-0badcafe','resp-1','2026-11-05 06:03:20.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'26875449a45f30ef536036cdc952d5e1ebc61a02a2bb9d41572ed90a49afd219','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',1);
INSERT INTO "ledger_entries" VALUES('93ba556e-d8da-5214-9442-32f5d9b37f03','01a1a2af-eb74-7000-8000-000000000003','usage','key_none','none','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.100000021,'config-0badcafe','resp-1','2026-11-03 18:33:20.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'824914f2f44ece56d7995f4f8332ec52d3716f8a8ada79e4d93751f48d2a1ce2','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',2);
INSERT INTO "ledger_entries" VALUES('36074f13-394e-5c92-92ba-9efe2fb087a4','01a1a2af-eb74-7000-8000-000000000003','adjustment','key_none','none','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'adjusted','stop','reported',NULL,0,0,0,NULL,0,33,9000,0,-0.040000003,'config-0badcafe','resp-1','2026-11-03 18:33:20.500000',321.5,1200.125,'{"reason":"price"}',1,'d29f89fec13b127c6f87901b8183e7900787ef0d29eec32aa5c3365aa918fd79','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',3);
INSERT INTO "ledger_entries" VALUES('4a69f65e-4520-562f-bcbc-5855a6a6d0ac','01a18a70-a4f4-7000-8000-000000000004','usage','key_none','none','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.100000028,'config-0badcafe','resp-1','2026-10-30 01:33:20.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'5160485c9b2ebdea9cbf7fcc60b380ab1f87cfefde1cf17726ea51dff899203e','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',4);
INSERT INTO "ledger_entries" VALUES('7b02746a-0338-50ec-90d1-f098630120b1','01a12371-74f4-7000-8000-000000000005','usage','key_none','none','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.100000035,'config-0badcafe','resp-1','2026-10-10 01:33:20.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'84222de137f7face6ffa1c11cb4d62817ee1bd60daf906c31d8d711aedd89a4c','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',5);
INSERT INTO "ledger_entries" VALUES('364712b5-96d8-554a-81b3-8e1f6445927d','01a1ac8e-c28c-7000-8000-000000000006','usage','key_12h','12h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.190000043,'config-0badcafe','resp-1','2026-11-05 16:33:19.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'08c1fab21597dd3b112bbdbc30d6e64d0a00cf2f3e92216b57fee5995006d2ec','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',6);
INSERT INTO "ledger_entries" VALUES('c85edf3c-3144-580a-ba6f-ab8177ceb8d7','01a1aa4d-fa4c-7000-8000-000000000007','usage','key_12h','12h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.19000005,'config-0badcafe','resp-1','2026-11-05 06:03:19.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'5222a2698e74032d2e6ecdb4e382233999b6cc084c7b948236f91131462b87d5','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',7);
INSERT INTO "ledger_entries" VALUES('83dedafc-3a7a-509d-a653-bea9b72fe968','01a1a2af-e78c-7000-8000-000000000008','usage','key_12h','12h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.190000057,'config-0badcafe','resp-1','2026-11-03 18:33:19.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'37bb4702aed32ca957f6e80da7e464bbb8dee78c823693c5d7e94acfcd64068b','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',8);
INSERT INTO "ledger_entries" VALUES('4a1d59d1-0a9b-5557-ae67-1ca99d8cf247','01a18a70-a10c-7000-8000-000000000009','usage','key_12h','12h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.190000064,'config-0badcafe','resp-1','2026-10-30 01:33:19.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'5d4459c4acd8c44c45d3e24010d84dcf65b62c0ec189d19e70390914713e82af','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',9);
INSERT INTO "ledger_entries" VALUES('d507fb05-fc81-5ff5-aeb6-0d70c5b411fb','01a12371-710c-7000-8000-00000000000a','usage','key_12h','12h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.190000071,'config-0badcafe','resp-1','2026-10-10 01:33:19.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'2a8524fb7a28e8d79f715286223cf88536ff3e707f095aabc50c47e736a1f524','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',10);
INSERT INTO "ledger_entries" VALUES('ee501a10-363b-52a5-85ab-5191bdacec8b','01a1ac8e-bea4-7000-8000-00000000000b','usage','key_24h','24h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.280000079,'config-0badcafe','resp-1','2026-11-05 16:33:18.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'b7dd7e15620ba83caf2871142de26d0b49e29a3b2462c1ef022b7cbb46a336f9','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',11);
INSERT INTO "ledger_entries" VALUES('f82137fc-a3ea-56dc-85ff-9e0b05fa1362','01a1aa4d-f664-7000-8000-00000000000c','usage','key_24h','24h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.280000086,'config-0badcafe','resp-1','2026-11-05 06:03:18.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'43870af613e283624d9484ea84cbfe695ad80e35092f671b1eb1b20ceab2a352','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',12);
INSERT INTO "ledger_entries" VALUES('892ad89f-9f43-509a-ad79-d4ae88f5d467','01a1a2af-e3a4-7000-8000-00000000000d','usage','key_24h','24h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.280000093,'config-0badcafe','resp-1','2026-11-03 18:33:18.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'68e8a6ad3d9cc4f1af0b1f60e4043cd69a914c091cf283d10e4b305da8ee3f9d','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',13);
INSERT INTO "ledger_entries" VALUES('04de509d-a054-5040-8ade-96fe2390b9ba','01a1a2af-e3a4-7000-8000-00000000000d','adjustment','key_24h','24h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'adjusted','stop','reported',NULL,0,0,0,NULL,0,33,9000,0,-0.040000003,'config-0badcafe','resp-1','2026-11-03 18:33:18.500000',321.5,1200.125,'{"reason":"price"}',1,'7b8e8df900036387d949057cb52e45857b21641b5ea792fe69489acd5b8f4413','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',14);
INSERT INTO "ledger_entries" VALUES('f70176f3-d740-5697-898f-1d2bc480d9b9','01a18a70-9d24-7000-8000-00000000000e','usage','key_24h','24h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.2800001,'config-0badcafe','resp-1','2026-10-30 01:33:18.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'1bc69e5a110848052dfac535083653aa56bdd3ad80689f69376e99480f70d182','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',15);
INSERT INTO "ledger_entries" VALUES('a7419d02-eb51-5885-b8d0-b8df813b8bdf','01a12371-6d24-7000-8000-00000000000f','usage','key_24h','24h','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.280000107,'config-0badcafe','resp-1','2026-10-10 01:33:18.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'fbe2cdb098d96caa5370c0433bd29d89ad8179d743b2a64f89349fede92c0c76','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',16);
INSERT INTO "ledger_entries" VALUES('a3da52dd-c9c0-57d9-9add-e847897e9355','01a1ac8e-babc-7000-8000-000000000010','usage','key_7d','7d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.370000115,'config-0badcafe','resp-1','2026-11-05 16:33:17.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'aebdd1f54e848296ec5d237a03808df65197cad93750db6371b4fc6d6d34c1dd','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',17);
INSERT INTO "ledger_entries" VALUES('cadfbfcf-e622-5e08-84ed-408a293c7198','01a1aa4d-f27c-7000-8000-000000000011','usage','key_7d','7d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.370000122,'config-0badcafe','resp-1','2026-11-05 06:03:17.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'9771240c1dc8139615ba0e0f6c3c01199b10dad7929e96ee94faaa5b47a759a0','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',18);
INSERT INTO "ledger_entries" VALUES('cc52a9c4-6f0b-5c46-a7a2-5d6836e4cdde','01a1a2af-dfbc-7000-8000-000000000012','usage','key_7d','7d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.370000129,'config-0badcafe','resp-1','2026-11-03 18:33:17.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'29d228333ee34d0cbb1d16944bee7015501bd3c21b3d089bcf6b284e6adfcb0b','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',19);
INSERT INTO "ledger_entries" VALUES('7e8869e2-1432-5481-9a8d-82f797cd175b','01a18a70-993c-7000-8000-000000000013','usage','key_7d','7d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.370000136,'config-0badcafe','resp-1','2026-10-30 01:33:17.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'0cf6e9e21458d39e4e542e5db61d1285f8c0838ca9bef045d33e59b7d054fc29','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',20);
INSERT INTO "ledger_entries" VALUES('a11bfeed-f8df-591c-89bb-2cdb222d3699','01a12371-693c-7000-8000-000000000014','usage','key_7d','7d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.370000143,'config-0badcafe','resp-1','2026-10-10 01:33:17.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'01f15d486fd32c1941e3c516035d0c6cb4a0b299d70e254b86d26ba6b6d81b05','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',21);
INSERT INTO "ledger_entries" VALUES('0a75fef8-5eb3-589d-8e42-b519a091ed65','01a1ac8e-b6d4-7000-8000-000000000015','usage','key_4w','4w','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.460000151,'config-0badcafe','resp-1','2026-11-05 16:33:16.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'61957753c27bf0b2365d8fb3807031f05bcba459d052bc32ee139ffe23954eeb','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',22);
INSERT INTO "ledger_entries" VALUES('fe2a0060-b97a-5d61-8658-5cff9968ca0f','01a1aa4d-ee94-7000-8000-000000000016','usage','key_4w','4w','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.460000158,'config-0badcafe','resp-1','2026-11-05 06:03:16.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'b3ffca5d5b0a3e5d3b01bf2eacdd2486c117e6f5ae200e4a34703d33cb6fa350','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',23);
INSERT INTO "ledger_entries" VALUES('6e83b224-70db-5cd1-8cbd-accd71d58ced','01a1a2af-dbd4-7000-8000-000000000017','usage','key_4w','4w','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.460000165,'config-0badcafe','resp-1','2026-11-03 18:33:16.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'e3f88505943e28aa5f5aea43153dfe69cec7cfecd66bb304a6a844629a305fd1','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',24);
INSERT INTO "ledger_entries" VALUES('191e6cd5-747a-5cdd-86fa-a006d55e10ec','01a1a2af-dbd4-7000-8000-000000000017','adjustment','key_4w','4w','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'adjusted','stop','reported',NULL,0,0,0,NULL,0,33,9000,0,-0.040000003,'config-0badcafe','resp-1','2026-11-03 18:33:16.500000',321.5,1200.125,'{"reason":"price"}',1,'c3870683b1496e10b9511d125069ba0fa628a454eb71b852d5ff7c2142e9d1da','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',25);
INSERT INTO "ledger_entries" VALUES('044e72fe-80a9-5ab4-9e77-ceaf0cd48247','01a18a70-9554-7000-8000-000000000018','usage','key_4w','4w','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.460000172,'config-0badcafe','resp-1','2026-10-30 01:33:16.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'aa63bea5d4da7cdd6cac89d3c030db891c85d359d804cfef58edc3a09844a1d0','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',26);
INSERT INTO "ledger_entries" VALUES('cfc4701d-8800-56e7-909f-3870028a8de6','01a12371-6554-7000-8000-000000000019','usage','key_4w','4w','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.460000179,'config-0badcafe','resp-1','2026-10-10 01:33:16.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'51dae46b65767dd4d79f7e10f6e151a61c69a1037b89fbc8acf36e05374fad0f','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',27);
INSERT INTO "ledger_entries" VALUES('8d9fb4ec-f7c7-5cc7-9730-05c1fa2b2f10','01a1ac8e-b2ec-7000-8000-00000000001a','usage','key_30d','30d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.550000187,'config-0badcafe','resp-1','2026-11-05 16:33:15.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'e39bc020cf230f2fc195b47a4a98c2b25ed2547c5440e6efaae31b09734287cc','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',28);
INSERT INTO "ledger_entries" VALUES('14c3e171-7cc1-5764-ad99-b4b1dcec2b97','01a1aa4d-eaac-7000-8000-00000000001b','usage','key_30d','30d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.550000194,'config-0badcafe','resp-1','2026-11-05 06:03:15.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'dec6d27aff61c4e91b3989ab0142ceb4aee7a5a354e7a2726240c5009da5b04f','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',29);
INSERT INTO "ledger_entries" VALUES('f6fa2c9e-731b-5adf-8074-82c536776b38','01a1a2af-d7ec-7000-8000-00000000001c','usage','key_30d','30d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.550000201,'config-0badcafe','resp-1','2026-11-03 18:33:15.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'d2e29b5c41c2c4403226f9f06dbecd53912e6b055e2dfd4ae880dd6e7c1da05f','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',30);
INSERT INTO "ledger_entries" VALUES('f38a4219-db92-5446-a9e2-a61839aef4ff','01a18a70-916c-7000-8000-00000000001d','usage','key_30d','30d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.550000208,'config-0badcafe','resp-1','2026-10-30 01:33:15.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'2074b5a400bed351db12ac7315ffb74b308d83a1183fe84a4f5d1d59368e3b0b','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',31);
INSERT INTO "ledger_entries" VALUES('e190457a-b679-5495-ad90-3f50a1593b7f','01a12371-616c-7000-8000-00000000001e','usage','key_30d','30d','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.550000215,'config-0badcafe','resp-1','2026-10-10 01:33:15.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'6c2ad4900efdc33d3b1ce9c576f51040776358ec53465b92e4734e86544b7da5','2026-11-05 17:33:21.500000','ce9042c49e58c5ac',32);
INSERT INTO "ledger_entries" VALUES('1b9d4827-1a32-5a14-8a01-2e540254740e','01a1ac8e-af04-7000-8000-00000000001f','usage','key_calendarmonth','calendarmonth','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.640000223,'config-0badcafe','resp-1','2026-11-05 16:33:14.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'19048933772d28b55a85bed3591eef10a8aeb416e90cdde12150d43e39b86360','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',33);
INSERT INTO "ledger_entries" VALUES('9e8fdb71-9b5b-5a2c-920d-8b0a766a77e0','01a1aa4d-e6c4-7000-8000-000000000020','usage','key_calendarmonth','calendarmonth','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.64000023,'config-0badcafe','resp-1','2026-11-05 06:03:14.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'af8ebdf34b48b24c10f9d462858ed62857693bd47130d9ba03f36d8c860bbd7b','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',34);
INSERT INTO "ledger_entries" VALUES('0c41e9f0-b6ed-57e1-a97f-18374c87c008','01a1a2af-d404-7000-8000-000000000021','usage','key_calendarmonth','calendarmonth','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.640000237,'config-0badcafe','resp-1','2026-11-03 18:33:14.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'385f491c45914e700979a8ce4c857b95e5e856fd5a84bc94e55e3abfc38c543d','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',35);
INSERT INTO "ledger_entries" VALUES('bce5bbd1-09ce-527f-a36b-aaaf2c065010','01a1a2af-d404-7000-8000-000000000021','adjustment','key_calendarmonth','calendarmonth','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'adjusted','stop','reported',NULL,0,0,0,NULL,0,33,9000,0,-0.040000003,'config-0badcafe','resp-1','2026-11-03 18:33:14.500000',321.5,1200.125,'{"reason":"price"}',1,'2c6692c2c18b591936f0503c91b2be7222a302e92d21cacaf27f85f6cff5c395','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',36);
INSERT INTO "ledger_entries" VALUES('2c7536a6-6762-579f-ba6f-9363c6003e44','01a18a70-8d84-7000-8000-000000000022','usage','key_calendarmonth','calendarmonth','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.640000244,'config-0badcafe','resp-1','2026-10-30 01:33:14.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'b63a789ced2c1380fbb064abd16fd7d32db4385592d11f0714b97c158660d52b','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',37);
INSERT INTO "ledger_entries" VALUES('695b8da2-1fa3-5fba-a77f-f9bd5886d6bb','01a12371-5d84-7000-8000-000000000023','usage','key_calendarmonth','calendarmonth','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.640000251,'config-0badcafe','resp-1','2026-10-10 01:33:14.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'082a29e28cc632f6d5843fd8949ec6eba18ee0a7ce994810048945aeb0239d10','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',38);
INSERT INTO "ledger_entries" VALUES('f0385537-d640-5a39-b506-faa6143bda07','01a1ac8e-ab1c-7000-8000-000000000024','usage','key_prepaid','prepaid','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.730000259,'config-0badcafe','resp-1','2026-11-05 16:33:13.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'1b1edf2306ebc7b118dacd3bf513ea2c87ed4e14927f1ae926c49305786f0ffb','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',39);
INSERT INTO "ledger_entries" VALUES('a03b9778-6cf0-5a60-b8dd-98ff7a9405f7','01a1aa4d-e2dc-7000-8000-000000000025','usage','key_prepaid','prepaid','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.730000266,'config-0badcafe','resp-1','2026-11-05 06:03:13.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'6dec6bb4a44ba0f56b0b50a7612b4fd0fea946414b43170e3a0b75a3d27caa79','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',40);
INSERT INTO "ledger_entries" VALUES('8b89b7eb-0a39-5e73-9538-336d7e235d81','01a1a2af-d01c-7000-8000-000000000026','usage','key_prepaid','prepaid','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.730000273,'config-0badcafe','resp-1','2026-11-03 18:33:13.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'afebc6ffa96474387b8cec2fb3f34704c7a85f98f4379d2e0a1ae6b2f55d11f4','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',41);
INSERT INTO "ledger_entries" VALUES('4c4aebd5-7145-55e1-9dd9-6cabd7699ce9','01a18a70-899c-7000-8000-000000000027','usage','key_prepaid','prepaid','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.73000028,'config-0badcafe','resp-1','2026-10-30 01:33:13.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'bbb58f72bcbced347f586d4faf8065bb0a045ecfb3fee6fefa4e56b1309dfc03','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',42);
INSERT INTO "ledger_entries" VALUES('a6bbe6dd-e768-5ad0-a853-96649106f11f','01a12371-599c-7000-8000-000000000028','usage','key_prepaid','prepaid','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.730000287,'config-0badcafe','resp-1','2026-10-10 01:33:13.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'9f2d5da8c9e17ac9ccbe7716439b43bcd959d2f81b0d21b99823e7fac4ffbd90','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',43);
INSERT INTO "ledger_entries" VALUES('1451bade-ede9-52e2-a22a-110f30dcd5ce','01a1ac8e-a734-7000-8000-000000000029','usage','key_both','both','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.820000295,'config-0badcafe','resp-1','2026-11-05 16:33:12.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'94e830f2dd60b47ee186a8c771a671994fabf2c20759ba226b86a3848fbd177f','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',44);
INSERT INTO "ledger_entries" VALUES('de6dea95-b702-5b64-a906-5dbd4d89ea0f','01a1aa4d-def4-7000-8000-00000000002a','usage','key_both','both','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.820000302,'config-0badcafe','resp-1','2026-11-05 06:03:12.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'957f5f72b100660ba54f3c5f3fdebf6a10b3fba7d18c41d57442c1f7f92fe01e','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',45);
INSERT INTO "ledger_entries" VALUES('36d4aec1-99a4-5085-b4ea-1b3a4a2f64c8','01a1a2af-cc34-7000-8000-00000000002b','usage','key_both','both','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.820000309,'config-0badcafe','resp-1','2026-11-03 18:33:12.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'ea1dc495d45e65f4fca84ddcff25ec470edb1b822b229bd6b6e9775e3026b9bf','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',46);
INSERT INTO "ledger_entries" VALUES('6b0c86a4-0d58-50ef-a366-8a23ec7eb432','01a1a2af-cc34-7000-8000-00000000002b','adjustment','key_both','both','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'adjusted','stop','reported',NULL,0,0,0,NULL,0,33,9000,0,-0.040000003,'config-0badcafe','resp-1','2026-11-03 18:33:12.500000',321.5,1200.125,'{"reason":"price"}',1,'6805bb8d90aed5de35f2d6e66260489fc7792a1724085c14be3b4a4c6cf945f5','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',47);
INSERT INTO "ledger_entries" VALUES('9c0f2e2c-65ac-58a9-a21b-2e75600c61a1','01a18a70-85b4-7000-8000-00000000002c','usage','key_both','both','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.820000316,'config-0badcafe','resp-1','2026-10-30 01:33:12.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'a55f8784fe340bc8a4e320a3368b59a9c27045493a5030e90661c305b9923bed','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',48);
INSERT INTO "ledger_entries" VALUES('38af44db-a587-5b02-ae3e-425c9a2f6597','01a12371-55b4-7000-8000-00000000002d','usage','key_both','both','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.820000323,'config-0badcafe','resp-1','2026-10-10 01:33:12.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'1a2b0146b7683a9daf170e264abd67de1d535f71e7a03c532285e414d41e9f3f','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',49);
INSERT INTO "ledger_entries" VALUES('7075a6a6-9714-5897-b351-adfe117bfd5f','01a1ac8e-a34c-7000-8000-00000000002e','usage','key_rates','rates','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.910000331,'config-0badcafe','resp-1','2026-11-05 16:33:11.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'0b7cfd912a3165e8adbf1ba0857931a338c905ad95f7991bba239e81b61fd03f','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',50);
INSERT INTO "ledger_entries" VALUES('b115c7c3-c893-554f-8b54-cc176ff5d4d9','01a1aa4d-db0c-7000-8000-00000000002f','usage','key_rates','rates','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.910000338,'config-0badcafe','resp-1','2026-11-05 06:03:11.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'546bc405e265dfc319bedf2ef95e9a613a5c550d1d9e5d6158a0c55419535092','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',51);
INSERT INTO "ledger_entries" VALUES('ca91437f-0c88-5bea-a133-21fbdbc6d3fa','01a1a2af-c84c-7000-8000-000000000030','usage','key_rates','rates','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.910000345,'config-0badcafe','resp-1','2026-11-03 18:33:11.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'b49d559a6c4c20e1526f64cf5987d30e71103072ba12c09f58fb27d1b5a8c772','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',52);
INSERT INTO "ledger_entries" VALUES('38c7ef22-ff19-50e7-b323-bc31d1a3e24f','01a18a70-81cc-7000-8000-000000000031','usage','key_rates','rates','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.910000352,'config-0badcafe','resp-1','2026-10-30 01:33:11.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'7b6317507b052b652bf35f059c7fb103670da758c166292b030a16467fd397b1','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',53);
INSERT INTO "ledger_entries" VALUES('f7db4e19-d682-52c5-a862-7b0f34a07fc1','01a12371-51cc-7000-8000-000000000032','usage','key_rates','rates','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,0.910000359,'config-0badcafe','resp-1','2026-10-10 01:33:11.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'3442889197eaa581b32dc7fe2c8d5c5db53a198ef11fb7a80578a9245a5dfbec','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',54);
INSERT INTO "ledger_entries" VALUES('0cd8f7ca-4b83-5b3b-bd9d-d0685b37d4aa','01a1ac8e-9f64-7000-8000-000000000033','usage','key_spent','spent','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.000000367,'config-0badcafe','resp-1','2026-11-05 16:33:10.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'3e21fd9aac0610930515c096d04634915a24b20d387c3c4f9051d879261f9b21','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',55);
INSERT INTO "ledger_entries" VALUES('2ca20d16-cc34-5251-a202-cc396952ca39','01a1aa4d-d724-7000-8000-000000000034','usage','key_spent','spent','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.000000374,'config-0badcafe','resp-1','2026-11-05 06:03:10.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'5c5f8e055752d02158f854598c5385f06cc5c53ebb29eca094b25f232184cbb1','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',56);
INSERT INTO "ledger_entries" VALUES('30cc8f81-7950-56f2-9f7e-ca6896cc6e8e','01a1a2af-c464-7000-8000-000000000035','usage','key_spent','spent','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.000000381,'config-0badcafe','resp-1','2026-11-03 18:33:10.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'dea99c9ea34ea6220cdda97e6c807af5e7ef6fb6ea4c07a5a14e9e65ee0defa1','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',57);
INSERT INTO "ledger_entries" VALUES('49a00ce9-c181-535d-868d-4933c50dba47','01a1a2af-c464-7000-8000-000000000035','adjustment','key_spent','spent','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'adjusted','stop','reported',NULL,0,0,0,NULL,0,33,9000,0,-0.040000003,'config-0badcafe','resp-1','2026-11-03 18:33:10.500000',321.5,1200.125,'{"reason":"price"}',1,'78ed49bba34a4f69b67741be9620e7f714427da8549c663d4c70064185acb2d1','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',58);
INSERT INTO "ledger_entries" VALUES('039e5607-e1da-5600-b499-cc1388d2f186','01a18a70-7de4-7000-8000-000000000036','usage','key_spent','spent','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.000000388,'config-0badcafe','resp-1','2026-10-30 01:33:10.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'0a489d0edce5239019d1ed9cf4203d97b6a1c025f8c07d5194b4a3c36659b0dc','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',59);
INSERT INTO "ledger_entries" VALUES('5a62d5b5-385a-567a-a2b5-b3af1f12575e','01a12371-4de4-7000-8000-000000000037','usage','key_spent','spent','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.000000395,'config-0badcafe','resp-1','2026-10-10 01:33:10.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'9ce82f73a75db41b8271701b736540115654e65608466a3c7df111bb4e3accb1','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',60);
INSERT INTO "ledger_entries" VALUES('c98e798b-c85d-5324-b934-9d1725a7f6b4','01a1ac8e-9b7c-7000-8000-000000000038','usage','key_plain','plain','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.090000403,'config-0badcafe','resp-1','2026-11-05 16:33:09.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'03020e2bc33fc65545bc577056205ab53736b6a88ba8edb47b89732f35eace56','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',61);
INSERT INTO "ledger_entries" VALUES('c1f9c662-43e0-58b8-b48d-3a9bc24a5b76','01a1aa4d-d33c-7000-8000-000000000039','usage','key_plain','plain','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.09000041,'config-0badcafe','resp-1','2026-11-05 06:03:09.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'08a9e587fc639c0683cd9c732e4fe51251c2b97723ebbec17e7b3fa84407e63d','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',62);
INSERT INTO "ledger_entries" VALUES('4f2ec23d-8bcc-57ff-854d-eb0eeeede935','01a1a2af-c07c-7000-8000-00000000003a','usage','key_plain','plain','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.090000417,'config-0badcafe','resp-1','2026-11-03 18:33:09.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'cca000fbad98e0bcac8020aea32b6423617590307cb347ed06c975fb662c5345','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',63);
INSERT INTO "ledger_entries" VALUES('7bf15684-7216-55a4-acf2-c49aefb56a92','01a18a70-79fc-7000-8000-00000000003b','usage','key_plain','plain','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.090000424,'config-0badcafe','resp-1','2026-10-30 01:33:09.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'5bd804e96886ed34d928bba180bb95ec3c45b14a689ab72994fcaeaee6dbe249','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',64);
INSERT INTO "ledger_entries" VALUES('5c51933b-1ee3-5364-be6d-7925e8c1df45','01a12371-49fc-7000-8000-00000000003c','usage','key_plain','plain','tera','tera-large','tera-large-0901','/v1/chat/completions',1,'served','stop','reported',NULL,100,20,50,NULL,150,33,9000,0.123456789,1.090000431,'config-0badcafe','resp-1','2026-10-10 01:33:09.500000',321.5,1200.125,'{"bills":"prompt+output"}',0,'4a6caa09c0216b9581a9f22419d965f8e55b2b4c164540abd1a3f0ca20126c63','2026-11-05 17:33:21.500001','ce9042c49e58c5ac',65);
INSERT INTO "ledger_entries" VALUES('512eeafa-fd14-58b4-8670-06c30b1f8965','01a1417b-e2f4-7000-8000-000000000384','credit','org_paid','Paid ahead','','','','',0,'credit',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,-60.000000009,NULL,NULL,'2026-10-15 21:33:20.500000',NULL,0.0,'{"why":"invoice 7","by":"operator"}',0,'b3e5032fcb1003d9bff4498ea468f9aa5cc1acbc47c495db3328685283c34607','2026-11-05 17:33:21.500002',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('5ffa4b19-d48c-5c1f-b9ee-1fc643ba4b19','01a1417b-e2f4-7000-8000-000000000385','credit','key_prepaid','prepaid','','','','',0,'credit',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,-20,NULL,NULL,'2026-10-15 21:33:20.500000',NULL,0.0,'{"why":"invoice 7","by":"operator"}',0,'f8165dbf1a2607ab9794b7e8960aa0c60258eaed3768070cc2cfe92b3ce5780a','2026-11-05 17:33:21.500003',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('c17b55bb-ff45-52ae-989a-7f7fe8154f5f','01a1417b-e2f4-7000-8000-000000000386','credit','key_prepaid','prepaid','','','','',0,'credit',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,1.000000001,NULL,NULL,'2026-10-15 21:33:20.500000',NULL,0.0,'{"why":"invoice 7","by":"operator"}',0,'da264d99233d392abf16eaea90ea60a7f4a12b0f84ed57d927040ebdc17e110a','2026-11-05 17:33:21.500004',NULL,NULL);
INSERT INTO "ledger_entries" VALUES('520e7b6f-cbe9-5216-ae50-92d270755ad5','01a1417b-e2f4-7000-8000-000000000387','credit','key_both','both','','','','',0,'credit',NULL,'none',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,-7.5,NULL,NULL,'2026-10-15 21:33:20.500000',NULL,0.0,'{"why":"invoice 7","by":"operator"}',0,'0133030eff3f180c562000f61cc7c894ef010ba6f2e534c8ae6c361a84346cca','2026-11-05 17:33:21.500005',NULL,NULL);
CREATE TABLE periods (
	month VARCHAR NOT NULL, 
	closed_at DATETIME NOT NULL, 
	closed_by VARCHAR NOT NULL, 
	left_behind JSON, 
	issued_at DATETIME, 
	entries BIGINT, 
	digest VARCHAR, 
	CONSTRAINT pk_periods PRIMARY KEY (month)
);
INSERT INTO "periods" VALUES('2026-10','2026-11-05 17:33:21.500006','golden',NULL,NULL,NULL,NULL);
CREATE TABLE price_lists (
	name VARCHAR NOT NULL, 
	version VARCHAR, 
	content BLOB, 
	accepted_at DATETIME, 
	checked_at DATETIME, 
	next_at DATETIME NOT NULL, 
	refused JSON NOT NULL, 
	error VARCHAR, 
	CONSTRAINT pk_price_lists PRIMARY KEY (name)
);
CREATE TABLE scope_months (
	scope_id VARCHAR NOT NULL, 
	month VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	entries BIGINT NOT NULL, 
	digest VARCHAR NOT NULL, 
	charged_usd NUMERIC(24, 9) NOT NULL, 
	credited_usd NUMERIC(24, 9) NOT NULL, 
	content JSON NOT NULL, 
	CONSTRAINT pk_scope_months PRIMARY KEY (scope_id, month)
);
CREATE TABLE sink_letters (
	sink VARCHAR NOT NULL, 
	entry_id VARCHAR NOT NULL, 
	settled_at DATETIME NOT NULL, 
	why VARCHAR NOT NULL, 
	first_seen DATETIME NOT NULL, 
	state VARCHAR NOT NULL, 
	CONSTRAINT pk_sink_letters PRIMARY KEY (sink, entry_id)
);
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
CREATE TABLE stored_batches (
	exchange_id VARCHAR NOT NULL, 
	batch_id VARCHAR, 
	api VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	credential VARCHAR, 
	key_id VARCHAR NOT NULL, 
	key_alias VARCHAR NOT NULL, 
	project_id VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	state VARCHAR NOT NULL, 
	endpoint VARCHAR NOT NULL, 
	input_file VARCHAR, 
	lines BIGINT NOT NULL, 
	held_usd NUMERIC(24, 9), 
	names VARCHAR NOT NULL, 
	files JSON NOT NULL, 
	terms JSON NOT NULL, 
	next_at DATETIME NOT NULL, 
	claimed_by VARCHAR, 
	CONSTRAINT pk_stored_batches PRIMARY KEY (exchange_id), 
	CONSTRAINT uq_stored_batches_batch_id UNIQUE (batch_id)
);
INSERT INTO "stored_batches" VALUES('01a1ac57-d7f4-7000-8000-000000000320','batch_0','openai.batches','p',NULL,'key_7d','7d','proj_chat','2026-11-05 15:33:20.500000','running','/v1/embeddings','file-1',2,1.500000001,'ff','[]','[]','2026-11-05 17:34:20.500000','golden-node');
INSERT INTO "stored_batches" VALUES('01a1ac57-d7f4-7000-8000-000000000321','batch_1','openai.batches','p',NULL,'key_both','both','proj_free','2026-11-05 15:33:20.500000','running','/v1/embeddings','file-1',2,1.500000002,'ff','[]','[]','2026-11-05 17:34:20.500000','golden-node');
CREATE TABLE stored_files (
	file_id VARCHAR NOT NULL, 
	api VARCHAR NOT NULL, 
	provider VARCHAR NOT NULL, 
	credential VARCHAR, 
	key_id VARCHAR NOT NULL, 
	project_id VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	purpose VARCHAR NOT NULL, 
	input JSON, 
	made_by VARCHAR, 
	CONSTRAINT pk_stored_files PRIMARY KEY (file_id)
);
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
INSERT INTO "usage_daily" VALUES('2026-10-10','key_12h','tera-large',0.190000071,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_12h','tera-large',0.190000064,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_12h','tera-large',0.190000057,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_12h','tera-large',0.380000093,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_24h','tera-large',0.280000107,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_24h','tera-large',0.2800001,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_24h','tera-large',0.24000009,0.123456789,100,20,50,0,150,2);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_24h','tera-large',0.560000165,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_30d','tera-large',0.550000215,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_30d','tera-large',0.550000208,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_30d','tera-large',0.550000201,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_30d','tera-large',1.100000381,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_4w','tera-large',0.460000179,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_4w','tera-large',0.460000172,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_4w','tera-large',0.420000162,0.123456789,100,20,50,0,150,2);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_4w','tera-large',0.920000309,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_7d','tera-large',0.370000143,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_7d','tera-large',0.370000136,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_7d','tera-large',0.370000129,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_7d','tera-large',0.740000237,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_none','tera-large',0.100000035,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_none','tera-large',0.100000028,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_none','tera-large',0.060000018,0.123456789,100,20,50,0,150,2);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_none','tera-large',0.200000021,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_both','tera-large',0.820000323,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_both','tera-large',0.820000316,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_both','tera-large',0.780000306,0.123456789,100,20,50,0,150,2);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_both','tera-large',1.640000597,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_calendarmonth','tera-large',0.640000251,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_calendarmonth','tera-large',0.640000244,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_calendarmonth','tera-large',0.600000234,0.123456789,100,20,50,0,150,2);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_calendarmonth','tera-large',1.280000453,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_plain','tera-large',1.090000431,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_plain','tera-large',1.090000424,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_plain','tera-large',1.090000417,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_plain','tera-large',2.180000813,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_prepaid','tera-large',0.730000287,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_prepaid','tera-large',0.73000028,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_prepaid','tera-large',0.730000273,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_prepaid','tera-large',1.460000525,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_rates','tera-large',0.910000359,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_rates','tera-large',0.910000352,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_rates','tera-large',0.910000345,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_rates','tera-large',1.820000669,0.246913578,200,40,100,0,300,2);
INSERT INTO "usage_daily" VALUES('2026-10-10','key_spent','tera-large',1.000000395,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-10-30','key_spent','tera-large',1.000000388,0.123456789,100,20,50,0,150,1);
INSERT INTO "usage_daily" VALUES('2026-11-03','key_spent','tera-large',0.960000378,0.123456789,100,20,50,0,150,2);
INSERT INTO "usage_daily" VALUES('2026-11-05','key_spent','tera-large',2.000000741,0.246913578,200,40,100,0,300,2);
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
CREATE INDEX ix_scope_months_month ON scope_months (month);
CREATE INDEX ix_api_keys_created_at_key_id ON api_keys (created_at, key_id);
CREATE INDEX ix_api_keys_old_digest ON api_keys (old_digest) WHERE old_digest IS NOT NULL;
CREATE INDEX ix_stored_files_key_id_created_at ON stored_files (key_id, created_at);
CREATE INDEX ix_stored_files_project_id_created_at ON stored_files (project_id, created_at);
CREATE INDEX ix_stored_batches_key_id_created_at ON stored_batches (key_id, created_at);
CREATE INDEX ix_stored_batches_project_id_created_at ON stored_batches (project_id, created_at);
CREATE INDEX ix_stored_batches_next_at ON stored_batches (next_at) WHERE state IN ('creating', 'running');
CREATE INDEX ix_ledger_entries_unknown_amount ON ledger_entries (started_at) WHERE kind = 'usage' AND (cost_usd IS NULL OR charge_usd IS NULL);
COMMIT;
