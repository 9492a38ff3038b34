//! Keys of RocketMQ that change nothing here, and parts of it that a configuration may ask for
//! in vain. Asking is refused where going on without the part would be unsafe.

use super::super::key::{Key, Kind, key};
use super::super::settings::Unused;

pub const FEATURES: &[Key] = &[
    key(
        "enableControllerMode",
        Kind::Flag,
        "false",
        "Roles are fixed by `brokerRole`; there is no controller, and its replication stream is \
         another one.",
    )
    .refused(),
    key(
        "enableDLegerCommitLog",
        Kind::Flag,
        "false",
        "The commit log of DLedger has another format.",
    )
    .refused(),
    key(
        "duplicationEnable",
        Kind::Flag,
        "false",
        "Duplication would switch replication off.",
    )
    .refused(),
    key(
        "storeType",
        Kind::Text,
        "default",
        "Consume queues and tables are plain files, never RocksDB.",
    )
    .refused(),
    key(
        "configManagerVersion",
        Kind::Text,
        "v1",
        "Tables are JSON files, never RocksDB.",
    )
    .refused(),
    key(
        "rocksdbCQDoubleWriteEnable",
        Kind::Flag,
        "false",
        "A second copy of the consume queues in RocksDB is never written.",
    )
    .later(),
    key(
        "messageStorePlugIn",
        Kind::Text,
        "",
        "A store cannot be extended by Java classes.",
    )
    .refused(),
    key(
        "aclEnable",
        Kind::Flag,
        "false",
        "There is no access control; a broker that should have it does not start.",
    )
    .refused(),
    key(
        "authenticationEnabled",
        Kind::Flag,
        "false",
        "There is no access control; a broker that should have it does not start.",
    )
    .refused(),
    key(
        "authorizationEnabled",
        Kind::Flag,
        "false",
        "There is no access control; a broker that should have it does not start.",
    )
    .refused(),
    key(
        "useTLS",
        Kind::Flag,
        "false",
        "Connections are not encrypted; a broker that should encrypt does not start.",
    )
    .refused(),
    key(
        "transientStorePoolEnable",
        Kind::Flag,
        "false",
        "Messages go straight into the page cache, as without the pool.",
    )
    .later(),
    key(
        "enableSlaveActingMaster",
        Kind::Flag,
        "false",
        "A slave never acts as a master.",
    )
    .later(),
    key(
        "enableRemoteEscape",
        Kind::Flag,
        "false",
        "Messages are not sent on to another broker.",
    )
    .later(),
    key(
        "enableAutoInSyncReplicas",
        Kind::Flag,
        "false",
        "`inSyncReplicas` is never lowered when slaves are missing.",
    )
    .later(),
    key(
        "haFlowControlEnable",
        Kind::Flag,
        "false",
        "The link is as fast as it can be.",
    )
    .later(),
    key(
        "syncFromLastFile",
        Kind::Flag,
        "false",
        "`haEmptySlaveFrom` on the master says where an empty slave begins.",
    )
    .later(),
    key(
        "enableLmq",
        Kind::Flag,
        "false",
        "There are no light message queues.",
    )
    .later(),
    key(
        "enableMultiDispatch",
        Kind::Flag,
        "false",
        "A message is entered into one queue.",
    )
    .later(),
    key(
        "enableRetryTopicV2",
        Kind::Flag,
        "false",
        "Retry topics have their 4.9 names.",
    )
    .later(),
    key(
        "enablePropertyFilter",
        Kind::Flag,
        "false",
        "Filters by SQL expression are refused.",
    )
    .later(),
    key(
        "enabledAppendPropCRC",
        Kind::Flag,
        "false",
        "Properties are stored without a checksum.",
    )
    .later(),
    key(
        "forceVerifyPropCRC",
        Kind::Flag,
        "false",
        "The checksum of properties is not verified.",
    )
    .later(),
    key(
        "fetchNamesrvAddrByAddressServer",
        Kind::Flag,
        "false",
        "Name servers are those in `namesrvAddr`.",
    )
    .later(),
    key(
        "fetchNameSrvAddrByDnsLookup",
        Kind::Flag,
        "false",
        "Name servers are those in `namesrvAddr`.",
    )
    .later(),
    key(
        "rejectPullConsumerEnable",
        Kind::Flag,
        "false",
        "Pull consumers are always served.",
    )
    .later(),
    key(
        "disableConsumeIfConsumerReadSlowly",
        Kind::Flag,
        "false",
        "A slow consumer is always served.",
    )
    .later(),
    key(
        "timerWheelEnable",
        Kind::Flag,
        "false",
        "Timer messages are refused. RocketMQ 5.x has true as its default.",
    )
    .later(),
    key(
        "metricsExporterType",
        Kind::Text,
        "DISABLE",
        "Metrics are not exported.",
    )
    .later(),
];

pub static BROKER: &[Unused] = &[
    Unused {
        why: "the controller, DLedger and slaves that act as masters are not part of this product",
        names: "allAckInSyncStateSet asyncLearner brokerConfigPaths brokerElectionPriority \
                brokerHeartbeatInterval brokerNotActiveTimeoutMillis checkSyncStateSetPeriod \
                cleanOfflineBrokerInterval compatibleWithOldNameSrv controllerAddr \
                controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId \
                controllerHeartBeatTimeoutMills dLegerGroup dLegerPeers dLegerSelfId \
                fetchControllerAddrByDnsLookup forwardTimeout haMaxTimeSlaveNotCatchup \
                isBrokerContainer isInBrokerContainer loadBalancePollNameServerInterval \
                lockInStrictMode maxChecksumRange maxSlaveResendLength minInSyncReplicas \
                preferredLeaderId sendHeartbeatTimeoutMillis skipPreOnline \
                storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile \
                syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod \
                syncControllerMetadataPeriod syncMasterFlushOffsetWhenStartup totalReplicas",
    },
    Unused {
        why: "access control is not part of this product",
        names: "aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath \
                authenticationMetadataProvider authenticationProvider authenticationStrategy \
                authenticationWhitelist authorizationMetadataProvider authorizationProvider \
                authorizationStrategy authorizationWhitelist clusterName configName \
                initAuthenticationUser innerClientAuthenticationCredentials \
                migrateAuthFromV1Enabled statefulAuthenticationCacheExpiredSecond \
                statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond \
                statefulAuthorizationCacheMaxNum userCacheExpiredSecond userCacheMaxNum \
                userCacheRefreshSecond",
    },
    Unused {
        why: "there is no pop consumption",
        names: "ackMessageThreadPoolNums ackThreadPoolQueueCapacity appendAckAsync appendCkAsync \
                defaultMessageRequestMode defaultPopShareQueueNum \
                enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag \
                enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold \
                enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem \
                loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity \
                maxPopPollingSize popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime \
                popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable \
                popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability \
                popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapSize \
                popPollingSize popResponseReturnActualRetryTopic popReviveMaxAttemptTimes \
                popReviveMaxReturnSizePerRead retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs \
                reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime \
                serverLoadBalancerEnable skipWhenCKRePutReachMaxTimes waitTimeMillsInAckQueue",
    },
    Unused {
        why: "timer and recalled messages are refused in this version",
        names: "allowRecallWhenBrokerNotWriteable mappedFileSizeTimerLog recallMessageEnable \
                timerCheckMetricsWhen timerColdDataCheckIntervalMs timerCongestNumEachSlot \
                timerEnableCheckMetrics timerEnableDisruptor timerEnableRetryUntilSuccess \
                timerFlushIntervalMs timerGetMessageThreadNum timerInterceptDelayLevel \
                timerMaxDelaySec timerMetricSmallThreshold timerPrecisionMs \
                timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot \
                timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable",
    },
    Unused {
        why: "transactions are refused in this version",
        names: "endTransactionPoolQueueCapacity endTransactionThreadPoolNums maxDelayTime \
                rejectTransactionMessage transactionCheckInterval transactionCheckMax \
                transactionMetricFlushInterval transactionOpBatchInterval \
                transactionOpMsgMaxSize transactionTimeOut waitTimeMillsInTransactionQueue",
    },
    Unused {
        why: "there is no RocksDB here",
        names: "bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin \
                enableRocksDBLog memTableFlushIntervalMs realTimePersistRocksDBConfig \
                rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold \
                statRocksDBCQIntervalSec",
    },
    Unused {
        why: "there is no tiered or object storage here",
        names: "objectStoreAccessKey objectStoreBucket objectStoreEndpoint objectStoreSecretKey \
                readAheadCacheEnable readAheadCacheExpireDuration \
                readAheadCacheSizeThresholdRate readAheadMessageCountThreshold \
                readAheadMessageSizeThreshold tieredBackendServiceProvider \
                tieredMetadataServiceProvider tieredStorageLevel tieredStoreCommitLogMaxSize \
                tieredStoreConsumeQueueMaxSize tieredStoreCrcCheckEnable \
                tieredStoreDeleteFileEnable tieredStoreDeleteFileInterval tieredStoreFilePath \
                tieredStoreFileReservedTime tieredStoreGroupCommit tieredStoreGroupCommitCount \
                tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout \
                tieredStoreIndexFileMaxHashSlotNum tieredStoreIndexFileMaxIndexNum \
                tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit",
    },
    Unused {
        why: "compaction and control of cold reads are not part of this product",
        names: "cgColdReadThreshold coldCtrStrategyEnable coldDataFlowControlEnable \
                coldDataScanEnable compactionCqMappedFileSize compactionMappedFileSize \
                compactionScheduleInternal compactionThreadNum enableCompaction \
                globalColdReadThreshold maxOffsetMapSize usePIDColdCtrStrategy",
    },
    Unused {
        why: "threads, their queues and waiting times are not configured",
        names: "adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity asyncSendEnable \
                batchDispatchRequestThreadPoolNums brokerFastFailureEnable \
                clientCallbackExecutorThreads clientManageThreadPoolNums \
                clientManagerThreadPoolQueueCapacity clientWorkerThreads \
                consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity \
                dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread enableAsyncReput \
                enableBuildConsumeQueueConcurrently enableScheduleAsyncDeliver \
                heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode \
                litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity \
                maxAsyncPutMessageRequests osPageCacheBusyTimeOutMills \
                processReplyMessageThreadPoolNums pullMessageThreadPoolNums \
                pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putMsgIndexHightWater \
                putThreadPoolQueueCapacity queryMessageThreadPoolNums \
                queryThreadPoolQueueCapacity recoverConcurrently recoverThreadPoolNums \
                replyThreadPoolQueueCapacity scheduleAsyncDeliverMaxPendingLimit \
                scheduleAsyncDeliverMaxResendNum2Blocked sendMessageThreadPoolNums \
                serverCallbackExecutorThreads serverSelectorThreads serverWorkerThreads \
                startAcceptSendRequestTimeStamp topicQueueLockNum \
                waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue \
                waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue",
    },
    Unused {
        why: "sockets are handled differently from Netty",
        names: "channelExpiredTimeout channelNotActiveInterval clientAsyncSemaphoreValue \
                clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout \
                clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable \
                clientSocketRcvBufSize clientSocketSndBufSize connectTimeoutMillis \
                disableCallbackExecutor disableNettyWorkerGroup enableFastChannelEventProcess \
                enableNetWorkFlowControl enableReconnectForGoAway enableShutdownGracefully \
                isScanAvailableNameSrv maxReconnectIntervalTimeSeconds serverAsyncSemaphoreValue \
                serverNettyWorkerGroupEnable serverOnewaySemaphoreValue \
                serverPooledByteBufAllocatorEnable serverSocketBacklog serverSocketRcvBufSize \
                serverSocketSndBufSize shutdownWaitTimeSeconds socksProxyConfig \
                transferMsgByHeap useEpollNativeSelector writeBufferHighWaterMark \
                writeBufferLowWaterMark",
    },
    Unused {
        why: "figures are counted differently",
        names: "accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats \
                commercialBaseCount commercialBigCount commercialEnable commercialSizePerMsg \
                commercialTimerCount commercialTransCount debugLockEnable diskFallRecorded \
                enableDetailStat enableLmqStats enableScheduleMessageStats estimateAccumulation \
                isolateLogEnable maxStatsIdleTimeInMinutes metricGrpcExporterIntervalInMills \
                metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills \
                metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel \
                metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort \
                printChannelGroups printChannelGroupsMinNum recordGetMessageResult \
                sampleCountThreshold sampleSteps",
    },
    Unused {
        why: "files are created, mapped, locked and released differently",
        names: "flushIntervalConsumeQueue flushConsumeQueueLeastPages \
                deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval \
                accessMessageInMemoryHotRatio cleanSwapedMapInterval commitCommitLogLeastPages \
                commitCommitLogThoroughInterval commitIntervalCommitLog \
                commitLogForceSwapMapInterval commitLogRollingInterval \
                commitLogRollingMinimumSize commitLogSwapMapInterval \
                commitLogSwapMapReserveFileNum correctLogicMinOffsetForceInterval \
                correctLogicMinOffsetSleepInterval dataReadAheadEnable \
                destroyMapedFileIntervalForcibly disappearTimeAfterStart \
                enableCleanExpiredOffset fastFailIfNoBufferInStorePool flushCommitLogTimed \
                flushLeastPagesWhenWarmMapedFile logicQueueForceSwapMapInterval \
                logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum \
                logicalDiskSpaceCleanForciblyThreshold mappedFileSwapEnable \
                maxBatchDeleteFilesNum maxConsumeQueueScan maxRecoveryCommitlogFiles \
                messageIndexSafe pullBatchMaxMessageCount putConsumeQueueDataByFileChannel \
                readUnCommitted recheckReputOffsetFromCq redeleteHangedFileInterval \
                replicasPerDiskPartition searchBcqByCacheEnable \
                spinLockCollisionRetreatOptimalDegree transientStorePoolSize \
                travelCqFileNumWhenGetMessage useABSLock useReentrantLockWhenPutMessage \
                wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable",
    },
    Unused {
        why: "files of this kind are never written",
        names: "bitMapLengthConsumeQueueExt enableBatchPush enableCalcFilterBitMap \
                enableConsumeQueueExt mappedFileSizeConsumeQueueExt \
                mapperFileSizeBatchConsumeQueue maxLmqConsumeQueueNum maxMsgsNumBatch",
    },
    Unused {
        why: "filters by SQL expression and filter servers are not part of this product",
        names: "expectConsumerNumUseFilter filterDataCleanTimeSpan filterServerNums \
                filterSupportRetry maxErrorRateOfBloomFilter maxFilterMessageSize",
    },
    Unused {
        why: "name servers are told everything in one registration, at addresses from namesrvAddr",
        names: "enableSingleTopicRegister enableSplitRegistration fetchNamesrvAddrInterval \
                rmqAddressServerDomain rmqAddressServerSubGroup splitRegistrationSize \
                updateNameServerAddrPeriod",
    },
    Unused {
        why: "this broker behaves in one fixed way here",
        names: "autoMessageVersionOnTopicLen broadcastOffsetExpireMaxSecond \
                broadcastOffsetExpireSecond brokerConfigPath clearRetryTopicWhenDeleteTopic \
                configBlackList consumerFallbehindThreshold consumerOffsetUpdateVersionStep \
                delayOffsetUpdateVersionStep enableBroadcastOffsetStore enableCreateSysGroup \
                enableMixedMessageType enableRegisterProducer flushConsumerOffsetHistoryInterval \
                litePullMessageEnable maxHaTransferByteInSecond maxTopicLength putMessageTimeout \
                realTimeNotifyConsumerChange rocketmqHome storeReplyMessageEnable \
                subscriptionExpiredTimeout useServerSideResetOffset useStaticSubscription \
                validateSystemTopicWhenUpdateTopic",
    },
];

pub static NAMESRV: &[Unused] = &[
    Unused {
        why: "nothing is kept on disk",
        names: "kvConfigPath configStorePath configBlackList",
    },
    Unused {
        why: "there is one thread",
        names: "clientRequestThreadPoolNums defaultThreadPoolNums \
                clientRequestThreadPoolQueueCapacity defaultThreadPoolQueueCapacity \
                unRegisterBrokerQueueCapacity serverWorkerThreads serverCallbackExecutorThreads \
                serverSelectorThreads",
    },
    Unused {
        why: "serving begins at once",
        names: "needWaitForService waitSecondsForService",
    },
    Unused {
        why: "sockets are handled differently from Netty",
        names: "serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize \
                serverSocketRcvBufSize serverSocketBacklog serverPooledByteBufAllocatorEnable \
                serverNettyWorkerGroupEnable useEpollNativeSelector writeBufferHighWaterMark \
                writeBufferLowWaterMark enableShutdownGracefully shutdownWaitTimeSeconds",
    },
    Unused {
        why: "there is no controller",
        names: "controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId \
                controllerStorePath enableElectUncleanMaster notifyBrokerRoleChanged \
                scanInactiveMasterInterval electMasterMaxRetryCount mappedFileSize controllerType",
    },
    Unused {
        why: "paths and names of an installation of the original",
        names: "rocketmqHome productEnvName",
    },
];
