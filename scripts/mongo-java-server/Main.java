import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;

/** Serves MongoDB's protocol from memory on a port of the loopback address, until it is killed. */
class Main {
    public static void main(String[] arguments) {
        new MongoServer(new MemoryBackend()).bind("127.0.0.1", Integer.parseInt(arguments[0]));
    }
}
