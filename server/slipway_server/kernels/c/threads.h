// Threads that share the parts of a job.
// A job's parts are handed out by a ticket that holds both how many there are and which is next: whoever draws a part
// that is there may use the job, because it does not end before that part is done. So nobody waits for a worker that
// comes late. Workers spin for a moment before they sleep: within a step the next job comes after microseconds, between
// steps the cores belong to others.

typedef void (*Task)(void *job, i64 part);

static struct {
    int threads;
    atomic_llong ticket; // parts << 32 | next
    atomic_llong done;
    atomic_int sleeping;
    atomic_int resting; // nothing comes soon
    Task task;
    void *job;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} pool = {.threads = 1, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

#define SPINS 10000

static int open_parts(void) {
    i64 ticket = atomic_load(&pool.ticket);
    return (ticket & 0xffffffff) < ticket >> 32;
}

static void take_parts(void) {
    while (open_parts()) {
        i64 ticket = atomic_fetch_add(&pool.ticket, 1), part = ticket & 0xffffffff;
        if (part >= ticket >> 32) return;
        pool.task(pool.job, part);
        atomic_fetch_add(&pool.done, 1);
    }
}

static void *worker(void *unused) {
    (void)unused;
    for (;;) {
        for (int spin = 0; spin < SPINS && !open_parts() && !atomic_load(&pool.resting); spin++) PAUSE();
        if (!open_parts()) {
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_add(&pool.sleeping, 1);
            while (!open_parts()) pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.sleeping, 1);
            pthread_mutex_unlock(&pool.lock);
        }
        take_parts();
    }
    return NULL;
}

// Starts the threads that help the calling one; once per process.
int slipway_start(int threads) {
    for (; pool.threads < threads; pool.threads++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, NULL)) return -1;
        pthread_setname_np(thread, "slipway-kernel");
        pthread_detach(thread);
    }
    return pool.threads;
}

// The workers sleep at once: another process needs their cores until the next job.
void slipway_rest(void) { atomic_store(&pool.resting, 1); }

static void run(Task task, void *job, i64 parts) {
    if (pool.threads == 1 || parts == 1) {
        for (i64 part = 0; part < parts; part++) task(job, part);
        return;
    }
    pool.task = task, pool.job = job;
    atomic_store(&pool.resting, 0);
    atomic_store(&pool.done, 0);
    atomic_store(&pool.ticket, parts << 32);
    if (atomic_load(&pool.sleeping)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    take_parts();
    for (int spin = 0; atomic_load(&pool.done) < parts; spin++)
        if (spin < SPINS) PAUSE();
        else sched_yield();
}
