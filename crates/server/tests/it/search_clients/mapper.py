"""redis-om, an object mapper, as in its guide: hashes and documents with their indexes. Prints "content" at the end."""

import datetime
import os
import sys
from typing import List, Optional

os.environ["REDIS_OM_URL"] = f"redis://127.0.0.1:{sys.argv[1]}?decode_responses=True"

from redis_om import EmbeddedJsonModel, Field, HashModel, JsonModel, Migrator, NotFoundError


class Customer(HashModel, index=True):
    first_name: str = Field(index=True)
    last_name: str = Field(index=True)
    email: str = Field(index=True)
    join_date: datetime.date
    age: int = Field(index=True, sortable=True)
    bio: Optional[str] = Field(default=None, index=True, full_text_search=True)


class Address(EmbeddedJsonModel, index=True):
    city: str = Field(index=True)
    postal_code: str = Field(index=True)


class Member(JsonModel, index=True):
    name: str = Field(index=True, full_text_search=True)
    age: int = Field(index=True, sortable=True)
    tags: List[str] = Field(index=True)
    address: Address


def names(query):
    return sorted(one.first_name for one in query.all())


def hashes():
    today = datetime.date(2024, 5, 6)
    people = [("Ann", "Brook", "ann@one.example", 38, "likes the sea"), ("Bob", "Brook-Hill", "bob@two.example", 25, None), ("Eve", "Stone", "eve@one.example", 62, "likes hills")]
    saved = [Customer(first_name=first, last_name=last, email=email, join_date=today, age=age, bio=bio).save() for first, last, email, age, bio in people]
    ann = Customer.get(saved[0].pk)
    assert ann.email == "ann@one.example" and ann.join_date == today, ann
    assert names(Customer.find()) == ["Ann", "Bob", "Eve"]
    assert names(Customer.find(Customer.last_name == "Brook")) == ["Ann"]
    assert names(Customer.find(Customer.last_name == "Brook-Hill")) == ["Bob"]
    assert names(Customer.find(Customer.last_name != "Brook")) == ["Bob", "Eve"]
    assert names(Customer.find(Customer.email == "eve@one.example")) == ["Eve"]
    assert names(Customer.find((Customer.age > 30) & (Customer.first_name != "Eve"))) == ["Ann"]
    assert names(Customer.find((Customer.age == 25) | (Customer.age >= 62))) == ["Bob", "Eve"]
    assert names(Customer.find(Customer.first_name << ["Ann", "Eve"])) == ["Ann", "Eve"]
    assert names(Customer.find(Customer.bio % "hills")) == ["Eve"]
    assert names(Customer.find(Customer.last_name.startswith("Bro"))) == ["Ann", "Bob"]
    assert [one.first_name for one in Customer.find().sort_by("-age").all()] == ["Eve", "Ann", "Bob"]
    assert Customer.find(Customer.age > 30).count() == 2
    assert Customer.find(Customer.age > 30).sort_by("age").first().first_name == "Ann"
    assert len(list(Customer.all_pks())) == 3
    ann.update(age=39)
    assert names(Customer.find(Customer.age == 39)) == ["Ann"]
    ann.expire(100)
    assert Customer.db().ttl(ann.key()) == 100
    Customer.delete(saved[1].pk)
    try:
        Customer.get(saved[1].pk)
    except NotFoundError:
        pass
    else:
        raise AssertionError("it was deleted")
    assert Customer.find().delete() == 2
    more = [Customer(first_name=f"c{number}", last_name="Many", email="m", join_date=today, age=number) for number in range(30)]
    Customer.add(more)
    assert Customer.find(Customer.last_name == "Many").count() == 30
    assert len(Customer.find(Customer.last_name == "Many").page(offset=20, limit=20)) == 10
    Customer.delete_many(more)
    assert names(Customer.find()) == []


def documents():
    ann = Member(name="Ann Brook", age=38, tags=["a", "b c"], address=Address(city="Rome", postal_code="00100")).save()
    Member(name="Bob Hill", age=25, tags=["b c"], address=Address(city="Paris", postal_code="75001")).save()

    def found(query):
        return sorted(one.name for one in query.all())

    assert Member.get(ann.pk).address.city == "Rome"
    assert found(Member.find(Member.address.city == "Rome")) == ["Ann Brook"]
    assert found(Member.find(Member.name % "hill")) == ["Bob Hill"]
    assert found(Member.find(Member.tags << ["a"])) == ["Ann Brook"]
    assert found(Member.find((Member.age < 30) | (Member.address.postal_code == "00100"))) == ["Ann Brook", "Bob Hill"]
    ann.update(address__city="Oslo")
    assert found(Member.find(Member.address.city == "Oslo")) == ["Ann Brook"]
    assert len(list(Member.all_pks())) == 2
    assert Member.find().delete() == 2


Migrator().run()
Migrator().run()
for _ in range(2):
    hashes()
    documents()
print("content")
