import java.util.concurrent.*;

public class Pools {
    static volatile byte[] kept;

    static ExecutorService pool(String name) {
        return Executors.newFixedThreadPool(2, work -> new Thread(work, name));
    }

    public static void main(String[] a) throws Exception {
        ExecutorService busy = pool("busy"), idle = pool("idle");
        long end = System.nanoTime() + Long.parseLong(a[0]) * 1_000_000_000L;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 4; i++) busy.submit(() -> {
                long t = System.nanoTime() + 15_000_000L;
                while (System.nanoTime() < t) kept = new byte[1000];
            });
            idle.submit(() -> { kept = new byte[10]; });
            Thread.sleep(20);
        }
        System.exit(0);
    }
}
