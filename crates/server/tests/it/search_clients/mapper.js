// redis-om for JavaScript, an object mapper: node mapper.js PORT. Prints "content" at the end.

const assert = require('assert');
const { Schema, Repository, EntityId } = require('redis-om');
const { createClient } = require('redis-om/node_modules/redis');

async function main() {
  const client = createClient({ url: `redis://127.0.0.1:${process.argv[2]}` });
  await client.connect();
  for (const dataStructure of ['HASH', 'JSON']) {
    const schema = new Schema('album', {
      artist: { type: 'string' },
      title: { type: 'text' },
      year: { type: 'number', sortable: true },
      outOfPrint: { type: 'boolean' },
      genres: { type: 'string[]' },
      published: { type: 'date' },
      place: { type: 'point' },
    }, { dataStructure });
    const albums = new Repository(schema, client);
    await albums.createIndex();
    await albums.createIndex();
    const place = { longitude: 12.5, latitude: 41.9 };
    const first = await albums.save({ artist: 'Mushroomhead', title: 'The Righteous & The Butterfly', year: 2014, outOfPrint: true, genres: ['metal', 'rock'], published: new Date(1400000000000), place });
    const second = await albums.save('other', { artist: 'Tool', title: 'Lateralus', year: 2001, outOfPrint: false, genres: ['rock'], published: new Date(990000000000), place });
    assert.strictEqual(second[EntityId], 'other');
    const read = await albums.fetch(first[EntityId]);
    assert.deepStrictEqual([read.artist, read.year, read.outOfPrint, read.genres], ['Mushroomhead', 2014, true, ['metal', 'rock']]);
    const found = (search) => search.return.all().then((all) => all.map((it) => it.artist).sort());
    const both = ['Mushroomhead', 'Tool'];
    assert.deepStrictEqual(await found(albums.search()), both);
    assert.deepStrictEqual(await found(albums.search().where('artist').equals('Tool')), ['Tool']);
    assert.deepStrictEqual(await found(albums.search().where('title').matches('butterfly')), ['Mushroomhead']);
    assert.deepStrictEqual(await found(albums.search().where('year').is.between(1990, 2005)), ['Tool']);
    assert.deepStrictEqual(await found(albums.search().where('outOfPrint').is.true()), ['Mushroomhead']);
    assert.deepStrictEqual(await found(albums.search().where('genres').contain('rock')), both);
    assert.deepStrictEqual(await found(albums.search().where('published').is.after(new Date(1000000000000))), ['Mushroomhead']);
    assert.deepStrictEqual(await found(albums.search().where('place').inRadius((circle) => circle.origin(12.5, 41.9).radius(1).km)), both);
    assert.deepStrictEqual(await found(albums.search().where('artist').not.equals('Tool').and('year').gt(2000)), ['Mushroomhead']);
    assert.strictEqual(await albums.search().where('year').gt(1900).return.count(), 2);
    const sorted = await albums.search().sortBy('year', 'DESC').return.first();
    assert.strictEqual(sorted.artist, 'Mushroomhead');
    assert.strictEqual((await albums.search().return.page(1, 1)).length, 1);
    await albums.expire('other', 100);
    await albums.remove(first[EntityId], 'other');
    assert.deepStrictEqual(await found(albums.search()), []);
    await albums.dropIndex();
  }
  await client.disconnect();
  console.log('content');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
