package interop;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** Producers and consumers that outlive the request which opened them, by number. */
final class Handles {
    private final Map<Integer, AutoCloseable> open = new HashMap<>();
    private final ExecutorService closers = Executors.newCachedThreadPool();
    private int last;

    int add(AutoCloseable resource) {
        open.put(++last, resource);
        return last;
    }

    <T> T get(int handle, Class<T> type) {
        AutoCloseable resource = open.get(handle);
        if (resource == null) {
            throw new IllegalArgumentException("handle " + handle + " is not open");
        }
        return type.cast(resource);
    }

    /** Closes and waits for it, which takes the official clients up to three seconds. */
    void close(int handle) throws Exception {
        remove(handle).close();
    }

    /** Closes in the background. */
    void release(int handle) {
        AutoCloseable resource = remove(handle);
        closers.submit(() -> {
            resource.close();
            return null;
        });
    }

    void awaitReleased() throws InterruptedException {
        closers.shutdown();
        closers.awaitTermination(30, TimeUnit.SECONDS);
    }

    private AutoCloseable remove(int handle) {
        AutoCloseable resource = open.remove(handle);
        if (resource == null) {
            throw new IllegalArgumentException("handle " + handle + " is not open");
        }
        return resource;
    }
}
