-- How the seeds in `pgoutput` were made: on PostgreSQL 15 with wal_level = logical, the statements of each part after the
-- preparation, then the part's \copy line. Each row that it writes is one message behind its length in two bytes.

CREATE TABLE posts (author text, time bigint, body text, PRIMARY KEY (author, time));
CREATE TABLE things (id uuid PRIMARY KEY, a int, b jsonb, c text);
ALTER TABLE things ALTER c SET STORAGE EXTERNAL;
CREATE PUBLICATION larder FOR TABLE posts, things;
SELECT pg_create_logical_replication_slot('seeds', 'pgoutput');
CREATE FUNCTION messages() RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(lpad(to_hex(length(data)), 4, '0') || encode(data, 'hex'), '')
  FROM pg_logical_slot_get_binary_changes('seeds', NULL, NULL, 'proto_version', '1', 'publication_names', 'larder')
  WHERE get_byte(data, 0) NOT IN (ascii('B'), ascii('C'))
$$;

-- posts-15.seed: keys that come, change, move and go; keys that cannot be.
INSERT INTO posts VALUES ('bob', 100, 'hello'), ('eve', 7, NULL), ('a|b', 1, 'x'), ('joe', 12345678901, 'y');
UPDATE posts SET body = 'again' WHERE author = 'bob';
UPDATE posts SET time = 8 WHERE author = 'eve';
UPDATE posts SET author = 'ab' WHERE author = 'a|b';
DELETE FROM posts WHERE author = 'bob';
TRUNCATE posts;
-- psql -Atc 'SELECT messages()' | xxd -r -p > fuzz/seeds/pgoutput/posts-15.seed

-- things-15.seed: objects, with a large value that an update leaves out; the whole old row.
INSERT INTO things VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 1, '{"k": [1]}', repeat('x', 3000));
UPDATE things SET a = 2;
ALTER TABLE things REPLICA IDENTITY FULL;
UPDATE things SET b = NULL;
DELETE FROM things;
TRUNCATE things, posts;
-- psql -Atc 'SELECT messages()' | xxd -r -p > fuzz/seeds/pgoutput/things-15.seed
