-- The authoritative tables. Only the lanes write them: decisions first, then the events on Kafka.
-- Ids are compared byte by byte (COLLATE "C"): no locale may merge or reorder them, and the indexes are smaller and faster for it.

CREATE TABLE vouchers (
    voucher_id        text COLLATE "C" PRIMARY KEY,
    -- The pin: partition of both topics in which every record of this voucher lives.
    partition         integer NOT NULL CHECK (partition >= 0),
    title             text NOT NULL,
    total             bigint NOT NULL CHECK (total > 0),
    -- Units that no live order claims.
    remaining         bigint NOT NULL,
    per_user_limit    bigint NOT NULL CHECK (per_user_limit > 0),
    begins_at         timestamptz NOT NULL,
    ends_at           timestamptz NOT NULL CHECK (begins_at < ends_at),
    price_minor       bigint NOT NULL CHECK (price_minor >= 0),
    currency          text COLLATE "C" NOT NULL,
    payment_window_ms bigint CHECK (payment_window_ms > 0),
    state             text COLLATE "C" NOT NULL CHECK (state IN ('open', 'paused', 'closed')),
    terms_version     bigint NOT NULL CHECK (terms_version > 0),
    -- voucher_seq of the last event.
    seq               bigint NOT NULL CHECK (seq > 0),
    CONSTRAINT vouchers_conservation CHECK (remaining BETWEEN 0 AND total)
);

CREATE TABLE orders (
    order_id       uuid PRIMARY KEY,
    voucher_id     text COLLATE "C" NOT NULL,
    partition      integer NOT NULL CHECK (partition >= 0),
    user_id        text COLLATE "C" NOT NULL,
    quantity       bigint NOT NULL,
    status         text COLLATE "C" NOT NULL CHECK (status IN ('confirmed', 'rejected', 'paid', 'cancelled', 'expired')),
    reason         text COLLATE "C",
    requested_at   timestamptz NOT NULL,
    decided_at     timestamptz NOT NULL,
    changed_at     timestamptz NOT NULL,
    expires_at     timestamptz,
    payment_ref    text COLLATE "C",
    -- voucher_seq of the event that changed it last: an older one never overwrites a newer one.
    voucher_seq    bigint NOT NULL CHECK (voucher_seq > 0),
    request_offset bigint NOT NULL CHECK (request_offset >= 0),
    slot           bigint NOT NULL CHECK (slot >= 0),
    CONSTRAINT orders_quantity CHECK (quantity > 0 OR status = 'rejected'),
    CONSTRAINT orders_reason CHECK ((reason IS NOT NULL) = (status = 'rejected'))
);

-- The database's own guard where one unit per user is allowed (slot 0), and the index by which a buyer's units are summed.
CREATE UNIQUE INDEX orders_live ON orders (voucher_id, user_id, slot) WHERE status IN ('confirmed', 'paid');

CREATE UNIQUE INDEX orders_payment_ref ON orders (voucher_id, payment_ref) WHERE payment_ref IS NOT NULL;

-- For the timers: which confirmed orders of a partition have run out of time to pay. Empty where no voucher has a payment window.
CREATE INDEX orders_expiring ON orders (partition, expires_at) WHERE status = 'confirmed' AND expires_at IS NOT NULL;

-- One row a lane: fence, position and outbox. A lane commits its decisions only where next_offset is still what it expects.
CREATE TABLE lane_positions (
    topic       text COLLATE "C" NOT NULL,
    partition   integer NOT NULL CHECK (partition >= 0),
    -- Offset in the topic of the next request to decide.
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    -- The records that the last batch sends to Kafka, in the form of `infra::postgres::OutRecord`.
    records     bytea NOT NULL,
    PRIMARY KEY (topic, partition)
);

-- Overwritten with every batch: compressing it costs more than it saves.
ALTER TABLE lane_positions ALTER COLUMN records SET STORAGE EXTERNAL;
